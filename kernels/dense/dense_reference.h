// Dense reference: the dense kernels in the most obvious way, sums in double.
//
// What the CUDA kernels are compared with, and what the simulated device runs in their place. Slow; touches only the
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
void Gather(const Gathering& command, std::span<const int32_t> tokens);

// What cuBLAS needs around it: output[row, o] = bias[o], + what output held if it `adds`; and floats as 16-bit ones.
void SpreadBias(const float* bias, float* output, int64_t rows, int64_t outputs, bool adds);
void Narrow(const float* from, void* to, Dtype dtype, int64_t count);

}  // namespace vkv::kernels::reference

#endif  // VKV_KERNELS_DENSE_DENSE_REFERENCE_H_
