// Int8 products: weights in blocks of 32 integers with a 16-bit scale (the arithmetic that llama.cpp calls Q8_0), and
// rows of activations in blocks of 32 integers with a scale of 32 bits.
//
// The arithmetic is fixed to the bit, whatever the instructions, the threads and the other rows. A row's block is
// q = round(x · (127 / largest)), ties to even, with the scale largest / 127. Of a block of both, each 4 neighbours are
// multiplied and summed as integers, exactly: 8 sums a block. Sum l of block b is taken times the product of both
// scales, rounded once, and added, rounded once (fused), to lane 8 · (b mod 2) + l of 16; an odd last block has a block
// of zeros behind it. Then lane l takes lane l + 8, l + 4, l + 2 and l + 1, in this order. Any thread; no state.
#ifndef VKV_KERNELS_DENSE_CPU_INT8_H_
#define VKV_KERNELS_DENSE_CPU_INT8_H_

#include <cstdint>

#include "kernels/dense/dense_commands.h"
#include "kernels/float16.h"

namespace vkv::kernels {

// Of products and embeddings whose weights are Int8Blocks, [output, input / 32]. It is no entry of the list that all
// kernels share: only the dense kernels of the CPU know it.
inline constexpr Dtype kInt8Weights{3};

// 32 weights: the value is scale · values[i]. As in files: blocks lie one behind the other, at any address.
struct [[gnu::packed]] Int8Block {
  uint16_t scale = 0;  // a Half's bits
  int8_t values[32] = {};
};
inline constexpr int64_t kBlockElements = 32;
static_assert(sizeof(Int8Block) == 34 && alignof(Int8Block) == 1);

// Bytes of `count` weights, whole blocks where they are int8.
constexpr int64_t WeightBytes(Dtype dtype, int64_t count) {
  return dtype == kInt8Weights ? count / kBlockElements * int64_t{sizeof(Int8Block)} : count * ElementBytes(dtype);
}

// A row's block: of the largest integer, and the least magnitude that is not taken for zero.
inline constexpr float kLargestInteger = 127;
inline constexpr float kLeastLargest = 0x1p-100f;

// Rows of activations, as blocks. Both parts are as the `quantize` of the kernels that multiply them wrote them.
struct Int8Input {
  const int8_t* values = nullptr;  // [row, input]
  const float* scales = nullptr;   // [row, block]
  int64_t rows = 0;
  int64_t inputs = 0;  // a multiple of kBlockElements
};

// Outputs [from, to) of one product of int8 weights, all rows.
struct Int8Part {
  const Product* product = nullptr;
  Int8Input input;
  int64_t from = 0;
  int64_t to = 0;
};

// The arithmetic for one instruction set.
struct Int8Kernels {
  // One row of activations. A block with a number that is not finite has the scale NaN, one below 2⁻¹⁰⁰ is zero.
  void (*quantize)(const float* row, int64_t inputs, int8_t* values, float* scales);
  // `scratch` is Int8ScratchFloats(inputs) floats, and begins on a cache line.
  void (*multiply)(const Int8Part& part, float* scratch);
};

// Blocks of 16 outputs side by side, each with 16 scales and what is taken from its sums; or 8 rows, two blocks at a
// time.
constexpr int64_t Int8ScratchFloats(int64_t inputs) {
  constexpr int64_t kOutputs = 16;
  return (inputs / kBlockElements + 1) * kOutputs * (kBlockElements / 4 + kBlockElements / 4 + 1);
}

const Int8Kernels* VnniInt8();  // null where this machine or this build lacks AVX-512 VNNI; the caller asks for AVX-512
const Int8Kernels* Avx2Int8();  // where the machine has AVX2, FMA and F16C
const Int8Kernels* PortableInt8();

void QuantizeRow(const float* row, int64_t inputs, int8_t* values, float* scales);

// Weights: q = round(x · (1 / d)), halves away from zero, d = largest / 127, kept as 16 bits. False where a block is
// not finite, or its scale too large for 16 bits. `count` is a multiple of kBlockElements.
bool QuantizeBlocks(const float* from, int64_t count, Int8Block* to);
// `count` weights as floats, exact.
void ToFloats(float* to, const Int8Block* from, int64_t count);

// Writes a finished sum of a product.
inline void FinishOutput(const Product& product, int64_t row, int64_t o, float sum) {
  float& to = product.output[row * product.outputs + o];
  if (product.bias != nullptr) sum += product.bias[o];
  to = product.adds ? to + sum : sum;
}

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_DENSE_CPU_INT8_H_
