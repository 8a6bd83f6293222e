#include "kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/float16.h"

namespace vkv::kernels::reference {
namespace {

uint64_t HeadAt(const Tensor& tensor, int64_t slot, int64_t token, int64_t head) {
  return tensor.address + static_cast<uint64_t>(slot * tensor.slot_bytes + token * tensor.token_bytes +
                                                head * tensor.head_bytes);
}

uint64_t RowAt(uint64_t address, Dtype dtype, int64_t row, int64_t elements) {
  return address + static_cast<uint64_t>(row * elements * ElementBytes(dtype));
}

float Load(uint64_t address, Dtype dtype, int64_t index) {
  switch (dtype) {
    case Dtype::kFloat32: return reinterpret_cast<const float*>(address)[index];
    case Dtype::kFloat16: return ToFloat(reinterpret_cast<const Half*>(address)[index]);
    case Dtype::kBfloat16: return ToFloat(reinterpret_cast<const Bfloat*>(address)[index]);
  }
  return 0;
}

void Store(uint64_t address, Dtype dtype, int64_t index, float value) {
  switch (dtype) {
    case Dtype::kFloat32: reinterpret_cast<float*>(address)[index] = value; return;
    case Dtype::kFloat16: reinterpret_cast<Half*>(address)[index] = ToHalf(value); return;
    case Dtype::kBfloat16: reinterpret_cast<Bfloat*>(address)[index] = ToBfloat(value); return;
  }
}

// New rows [row, head, i] into one tensor.
void AppendTo(const Tensor& tensor, uint64_t rows, const AppendCommand& command, std::span<const Span> spans) {
  for (const Span& span : spans) {
    for (int64_t token = 0; token < span.tokens; ++token) {
      for (int64_t head = 0; head < tensor.heads; ++head) {
        const uint64_t from =
            RowAt(rows, command.row_dtype, (span.first_row + token) * tensor.heads + head, tensor.dim);
        const uint64_t to = HeadAt(tensor, span.slot, span.length + token, head);
        for (int64_t i = 0; i < tensor.dim; ++i) {
          Store(to, command.cache_dtype, i, Load(from, command.row_dtype, i));
        }
      }
    }
  }
}

// One query of one head over the first `length` tokens of a slot.
void Attend(const AttentionCommand& command, int64_t slot, int64_t length, int64_t row, int64_t query_head) {
  const Tensor& keys = command.keys;
  const Tensor& values = command.values;
  const int64_t head = query_head / (command.query_heads / keys.heads);
  const uint64_t query =
      RowAt(command.queries, command.row_dtype, row * command.query_heads + query_head, keys.dim);
  std::vector<double> weights(static_cast<size_t>(length));
  double largest = -INFINITY;
  for (int64_t token = 0; token < length; ++token) {
    const uint64_t key = HeadAt(keys, slot, token, head);
    double score = 0;
    for (int64_t i = 0; i < keys.dim; ++i) {
      score += double{Load(query, command.row_dtype, i)} * Load(key, command.cache_dtype, i);
    }
    weights[static_cast<size_t>(token)] = score * command.scale;
    largest = std::max(largest, score * command.scale);
  }
  double total = 0;
  for (double& weight : weights) total += weight = std::exp(weight - largest);
  const uint64_t output =
      RowAt(command.output, command.row_dtype, row * command.query_heads + query_head, values.dim);
  for (int64_t i = 0; i < values.dim; ++i) {
    double sum = 0;
    for (int64_t token = 0; token < length; ++token) {
      sum += weights[static_cast<size_t>(token)] *
             Load(HeadAt(values, slot, token, head), command.cache_dtype, i);
    }
    Store(output, command.row_dtype, i, static_cast<float>(sum / total));
  }
}

}  // namespace

void Append(const AppendCommand& command, std::span<const Span> spans) {
  AppendTo(command.keys, command.new_keys, command, spans);
  AppendTo(command.values, command.new_values, command, spans);
}

void CopyTokens(std::span<const Region> regions, std::span<const TokenCopy> copies) {
  for (const Region& region : regions) {
    const auto at = [&](int64_t slot, int64_t token) {
      return reinterpret_cast<uint8_t*>(region.address) + slot * region.slot_bytes + token * region.token_bytes;
    };
    for (const TokenCopy& copy : copies) {
      std::memcpy(at(copy.to_slot, copy.to_token), at(copy.from_slot, copy.from_token),
                  static_cast<size_t>(copy.tokens * region.token_bytes));
    }
  }
}

void Attention(const AttentionCommand& command, std::span<const Span> spans) {
  for (const Span& span : spans) {
    for (int64_t token = 0; token < span.tokens; ++token) {
      for (int64_t head = 0; head < command.query_heads; ++head) {
        Attend(command, span.slot, span.length + token + 1, span.first_row + token, head);
      }
    }
  }
}

}  // namespace vkv::kernels::reference
