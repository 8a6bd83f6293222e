// Reference: every kernel in the most obvious way, one loop per axis, sums in double.
//
// scripts/gpu-check compares the CUDA kernels with it, and the simulated device runs it in their place. Slow;
// allocates; uses only the memory that the command names. Any thread; no state.
#ifndef VKV_KERNELS_REFERENCE_H_
#define VKV_KERNELS_REFERENCE_H_

#include <span>

#include "kernels/commands.h"

namespace vkv::kernels::reference {

void Append(const AppendCommand& command, std::span<const Span> spans);
void CopyTokens(std::span<const Region> regions, std::span<const TokenCopy> copies);
// One kernel for both: a decoding sequence is one with a single new token.
void Attention(const AttentionCommand& command, std::span<const Span> spans);

// Decoding in two steps. Parts of `part_tokens` of the tokens that a sequence sees, with its sinks in the first:
// `partials` is [span, query head, part] of: largest score times log2 e, total of the weights relative to it, weighted
// sums [value dim]. Parts beyond a sequence's end are left alone.
void AttentionParts(const AttentionCommand& command, std::span<const Span> spans, int32_t parts, int32_t part_tokens,
                    float* partials);
void MergeParts(const AttentionCommand& command, std::span<const Span> spans, int32_t parts, int32_t part_tokens,
                const float* partials);

}  // namespace vkv::kernels::reference

#endif  // VKV_KERNELS_REFERENCE_H_
