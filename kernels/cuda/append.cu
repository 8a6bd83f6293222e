// Append: new K and V [row, head, dim] past each sequence's length, converted to the cache's type.
//
// Grid (rows): a block per new token, whose threads take its elements in turn, keys first. The sequence of a row is
// found by bisection. Bound by launch and memory; a step's rows are few.
#include "kernels/cuda/device.h"

namespace vkv::kernels::cuda {

// The last span that starts at or before the row: the one that has it, as spans without rows start where the next one
// does.
__device__ inline Span SpanOf(const Spans& spans, int64_t row) {
  int64_t low = 0;
  int64_t high = spans.count;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (SpanAt(spans, middle).first_row <= row)
      low = middle;
    else
      high = middle;
  }
  return SpanAt(spans, low);
}

__device__ inline void AppendRow(const Tensor& tensor, uint64_t rows, const AppendCommand& command, const Span& span,
                                 int64_t row) {
  const int elements = tensor.heads * tensor.dim;
  for (int i = threadIdx.x; i < elements; i += blockDim.x) {
    const float value = LoadElement(rows, command.row_dtype, row * elements + i);
    const uint64_t to = HeadAt(tensor, span.slot, span.length + (row - span.first_row), i / tensor.dim);
    StoreElement(to, command.cache_dtype, i % tensor.dim, value);
  }
}

VKV_KERNEL vkv_append(const __grid_constant__ AppendParameters parameters) {
  const AppendCommand& command = parameters.command;
  const int64_t row = SpanAt(parameters.spans, 0).first_row + static_cast<int64_t>(blockIdx.x);
  const Span span = SpanOf(parameters.spans, row);
  if (row - span.first_row >= span.tokens) return;  // a captured step's row without a sequence in this replay
  AppendRow(command.keys, command.new_keys, command, span, row);
  AppendRow(command.values, command.new_values, command, span, row);
}

}  // namespace vkv::kernels::cuda
