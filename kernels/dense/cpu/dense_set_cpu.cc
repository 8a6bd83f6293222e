#include "kernels/dense/cpu/dense_set_cpu.h"

#include <algorithm>

namespace vkv::kernels {
namespace {

// Below this, about five microseconds, waking another thread costs more than it saves.
constexpr int64_t kOperationsPerThread = 1 << 17;
// Parts per thread, so that one that comes late does not keep the others waiting.
constexpr int64_t kPartsPerThread = 16;
constexpr int64_t kElementsPerTask = 1 << 14;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The part that is task number `task`. Threads take tasks in turns; each of them then has parts that follow each other,
// and reads next what its processor has begun to fetch.
int64_t PartOf(int64_t task, int64_t parts, int64_t threads) {
  const int64_t whole = parts / threads, longer = parts % threads;
  const bool is_last = task >= whole * threads;
  const int64_t stretch = is_last ? task - whole * threads : task % threads;
  return stretch * whole + std::min(stretch, longer) + (is_last ? whole : task / threads);
}

// Elements 0, 2, 4 … of a head come before 1, 3, 5 …
void PartNeighbours(float* head, int64_t dim) {
  float before[kMostNeighbourDim];
  std::copy_n(head, dim, before);
  for (int64_t i = 0; i < dim / 2; ++i) {
    head[i] = before[2 * i];
    head[dim / 2 + i] = before[2 * i + 1];
  }
}

}  // namespace

int CpuDense::ThreadsFor(int64_t operations) const {
  return static_cast<int>(std::clamp<int64_t>(operations / kOperationsPerThread, 1, threads_));
}

Int8Input CpuDense::Quantize(const ProductInput& input) {
  const int64_t elements = input.rows * input.inputs;
  rows_.Reserve(elements / int64_t{sizeof(float)} + elements / kBlockElements);
  auto* const values = reinterpret_cast<int8_t*>(rows_.data());
  float* const scales = rows_.data() + elements / int64_t{sizeof(float)};
  pool_->ForEach(input.rows, ThreadsFor(4 * elements), [&](int64_t row, int) {
    dense_->int8->quantize(input.input + row * input.inputs, input.inputs, values + row * input.inputs,
                           scales + row * (input.inputs / kBlockElements));
  });
  return {values, scales, input.rows, input.inputs};
}

Status CpuDense::Multiply(const ProductInput& input, std::span<const Product> products) {
  int64_t outputs = 0;
  bool has_int8 = false;
  for (const Product& product : products) {
    outputs += product.outputs;
    has_int8 = has_int8 || product.dtype == kInt8Weights;
  }
  const Int8Input rows = has_int8 ? Quantize(input) : Int8Input{};
  const int64_t scratch_floats = std::max(kProductScratchFloats, has_int8 ? Int8ScratchFloats(input.inputs) : 0);
  scratch_.Reserve(scratch_floats * threads_);
  const int threads = ThreadsFor(input.rows * input.inputs * outputs);
  // Whole panels, so that no two parts share a line of weights. One row makes none, and smaller parts end closer
  // together: 960 outputs are 15 panels, and a thread of two has one more to do. Decoding in float32 is 1.05 times as
  // fast with both this and PartOf.
  const int64_t whole = input.rows == 1 ? kFewOutputs : kPanelOutputs;
  const int64_t wanted = threads == 1 ? outputs : outputs / (threads * kPartsPerThread);
  const int64_t per_part = CeilDiv(std::max<int64_t>(wanted, 1), whole) * whole;
  int64_t parts = 0;
  for (const Product& product : products) parts += CeilDiv(product.outputs, per_part);
  pool_->ForEach(parts, threads, [&](int64_t task, int worker) {
    int64_t part = PartOf(task, parts, threads);
    auto product = products.begin();
    for (; part >= CeilDiv(product->outputs, per_part); ++product) part -= CeilDiv(product->outputs, per_part);
    const int64_t from = part * per_part;
    const int64_t to = std::min(product->outputs, from + per_part);
    float* const scratch = scratch_.data() + worker * scratch_floats;
    if (product->dtype == kInt8Weights) return dense_->int8->multiply({&*product, rows, from, to}, scratch);
    dense_->multiply({&*product, input, from, to}, scratch);
  });
  return Ok();
}

Status CpuDense::Normalize(const Normalization& command, int64_t rows) {
  const int64_t at_once = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(command.width, 1));
  pool_->ForEach(CeilDiv(rows, at_once), ThreadsFor(2 * rows * command.width), [&](int64_t task, int) {
    dense_->normalize(command, task * at_once, std::min(rows, (task + 1) * at_once));
  });
  return Ok();
}

template <typename RotateRows>
void CpuDense::ForRotatedRows(const Rotation& command, int64_t rows, const RotateRows& rotate) {
  const int64_t width = command.heads * command.dim;
  const int64_t at_once = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(width, 1));
  pool_->ForEach(CeilDiv(rows, at_once), ThreadsFor(2 * rows * width),
                 [&](int64_t task, int) { rotate(task * at_once, std::min(rows, (task + 1) * at_once)); });
}

Status CpuDense::Rotate(const Rotation& command, int64_t rows) {
  ForRotatedRows(command, rows, [&](int64_t from, int64_t to) { dense_->rotate(command, from, to); });
  return Ok();
}

Status CpuDense::RotateNeighbours(const Rotation& command, int64_t rows) {
  ForRotatedRows(command, rows, [&](int64_t from, int64_t to) {
    for (int64_t head = from * command.heads; head < to * command.heads; ++head)
      PartNeighbours(command.heads_of_rows + head * command.dim, command.dim);
    dense_->rotate(command, from, to);
  });
  return Ok();
}

Status CpuDense::Gate(const Gating& command) {
  const int64_t count = command.count;
  pool_->ForEach(CeilDiv(count, kElementsPerTask), ThreadsFor(8 * count), [&](int64_t task, int) {
    dense_->gate(command, task * kElementsPerTask, std::min(count, (task + 1) * kElementsPerTask));
  });
  return Ok();
}

Status CpuDense::Cap(const Capping& command) {
  const int64_t count = command.count;
  pool_->ForEach(CeilDiv(count, kElementsPerTask), ThreadsFor(8 * count), [&](int64_t task, int) {
    dense_->cap(command, task * kElementsPerTask, std::min(count, (task + 1) * kElementsPerTask));
  });
  return Ok();
}

Status CpuDense::Gather(const Gathering& command, std::span<const int32_t> tokens) {
  const auto* const bytes = static_cast<const uint8_t*>(command.table);
  const int64_t row_bytes = WeightBytes(command.dtype, command.width);
  float* output = command.output;
  for (const int32_t token : tokens) {
    const uint8_t* const row = bytes + token * row_bytes;
    if (command.dtype == kInt8Weights)
      ToFloats(output, reinterpret_cast<const Int8Block*>(row), command.width);
    else
      dense_->to_floats(output, row, command.dtype, command.width);
    for (int64_t i = 0; i < command.width && command.factor != 1; ++i) output[i] *= command.factor;
    output += command.width;
  }
  return Ok();
}

}  // namespace vkv::kernels
