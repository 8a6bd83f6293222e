// Reference: every kernel in the most obvious way, one loop per axis, sums in double.
//
// What the CUDA kernels are compared with (scripts/gpu-check), and what the simulated device runs in their place. Slow;
// allocates; touches only the memory that the command names. Any thread; no state.
#ifndef VKV_KERNELS_REFERENCE_H_
#define VKV_KERNELS_REFERENCE_H_

#include <span>

#include "kernels/commands.h"

namespace vkv::kernels::reference {

void Append(const AppendCommand& command, std::span<const Span> spans);
void CopyTokens(std::span<const Region> regions, std::span<const TokenCopy> copies);
// One kernel for both: a decoding sequence is one with a single new token.
void Attention(const AttentionCommand& command, std::span<const Span> spans);

}  // namespace vkv::kernels::reference

#endif  // VKV_KERNELS_REFERENCE_H_
