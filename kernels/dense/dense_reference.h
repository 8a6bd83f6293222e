// Dense reference: the dense kernels in the most obvious way, sums in double.
//
// Tests compare the CUDA kernels with it, and the simulated device runs it in their place. Slow; uses only the
// memory that the command names. Any thread; no state.
#ifndef VKV_KERNELS_DENSE_DENSE_REFERENCE_H_
#define VKV_KERNELS_DENSE_DENSE_REFERENCE_H_

#include <span>

#include "kernels/dense/dense_commands.h"

namespace vkv::kernels::reference {

void Multiply(const ProductInput& input, const Product& product);
void Normalize(const Normalization& command, int64_t rows);
void Rotate(const Rotation& command, int64_t rows);
void Gate(const Gating& command);
void Cap(const Capping& command);
void Gather(const Gathering& command, std::span<const int32_t> tokens);

// Complements of cuBLAS: output[row, o] = bias[o], + the old output[row, o] if it `adds`; and floats to 16-bit floats.
void SpreadBias(const float* bias, float* output, int64_t rows, int64_t outputs, bool adds);
void Narrow(const float* from, void* to, Dtype dtype, int64_t count);

}  // namespace vkv::kernels::reference

#endif  // VKV_KERNELS_DENSE_DENSE_REFERENCE_H_
