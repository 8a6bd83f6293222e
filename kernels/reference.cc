#include "kernels/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/float16.h"

namespace vkv::kernels::reference {
namespace {

uint64_t HeadAt(const Tensor& tensor, int64_t slot, int64_t token, int64_t head) {
  return tensor.address +
         static_cast<uint64_t>(slot * tensor.slot_bytes + token * tensor.token_bytes + head * tensor.head_bytes);
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

// Weights relative to the largest score, of tokens [from, to) of a slot for one query, and of its head's sink.
struct Weights {
  double largest = -INFINITY;
  double total = 0;
  std::vector<double> of;
};

Weights Weigh(const AttentionCommand& command, int64_t slot, int64_t from, int64_t to, int64_t row, int64_t query_head,
              bool has_sink) {
  const Tensor& keys = command.keys;
  const int64_t head = query_head / (command.query_heads / keys.heads);
  const uint64_t query = RowAt(command.queries, command.row_dtype, row * command.query_heads + query_head, keys.dim);
  Weights weights;
  for (int64_t token = from; token < to; ++token) {
    const uint64_t key = HeadAt(keys, slot, token, head);
    double score = 0;
    for (int64_t i = 0; i < keys.dim; ++i) {
      score += double{Load(query, command.row_dtype, i)} * Load(key, command.cache_dtype, i);
    }
    score *= command.scale;
    if (command.softcap > 0) score = command.softcap * std::tanh(score / command.softcap);
    weights.of.push_back(score);
    weights.largest = std::max(weights.largest, score);
  }
  const double sink = has_sink ? reinterpret_cast<const float*>(command.sinks)[query_head] : -INFINITY;
  weights.largest = std::max(weights.largest, sink);
  weights.total = std::exp(sink - weights.largest);
  for (double& weight : weights.of) weights.total += weight = std::exp(weight - weights.largest);
  return weights;
}

// Σ weight · value of element i over the tokens from `from` on.
double WeighValues(const AttentionCommand& command, const Weights& weights, int64_t slot, int64_t from,
                   int64_t query_head, int64_t i) {
  const int64_t head = query_head / (command.query_heads / command.keys.heads);
  double sum = 0;
  for (size_t index = 0; index < weights.of.size(); ++index) {
    const uint64_t value = HeadAt(command.values, slot, from + static_cast<int64_t>(index), head);
    sum += weights.of[index] * Load(value, command.cache_dtype, i);
  }
  return sum;
}

uint64_t OutputAt(const AttentionCommand& command, int64_t row, int64_t query_head) {
  return RowAt(command.output, command.row_dtype, row * command.query_heads + query_head, command.values.dim);
}

constexpr int64_t kPartialHeader = 2;
constexpr double kLog2E = 1.44269504088896340736;

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
        const int64_t row = span.first_row + token;
        const int32_t position = span.length + static_cast<int32_t>(token);
        const int32_t from = FirstSeen(command, position);
        const Weights weights = Weigh(command, span.slot, from, position + 1, row, head, command.sinks != 0);
        for (int64_t i = 0; i < command.values.dim; ++i) {
          const double sum = WeighValues(command, weights, span.slot, from, head, i);
          Store(OutputAt(command, row, head), command.row_dtype, i, static_cast<float>(sum / weights.total));
        }
      }
    }
  }
}

void AttentionParts(const AttentionCommand& command, std::span<const Span> spans, int32_t parts, int32_t part_tokens,
                    float* partials) {
  for (const Span& span : spans) {
    for (int64_t head = 0; head < command.query_heads; ++head) {
      for (int64_t part = 0; part < parts; ++part, partials += kPartialHeader + command.values.dim) {
        const int64_t from = FirstSeen(command, span.length) + part * part_tokens;
        const int64_t to = std::min<int64_t>(from + part_tokens, span.length + 1);
        if (span.tokens == 0 || from >= to) continue;
        const bool has_sink = part == 0 && command.sinks != 0;
        const Weights weights = Weigh(command, span.slot, from, to, span.first_row, head, has_sink);
        partials[0] = static_cast<float>(weights.largest * kLog2E);
        partials[1] = static_cast<float>(weights.total);
        for (int64_t i = 0; i < command.values.dim; ++i) {
          partials[kPartialHeader + i] = static_cast<float>(WeighValues(command, weights, span.slot, from, head, i));
        }
      }
    }
  }
}

void MergeParts(const AttentionCommand& command, std::span<const Span> spans, int32_t parts, int32_t part_tokens,
                const float* partials) {
  const int64_t stride = kPartialHeader + command.values.dim;
  for (const Span& span : spans) {
    const int64_t seen = int64_t{span.length} + 1 - FirstSeen(command, span.length);
    const int64_t used = (seen + part_tokens - 1) / part_tokens;
    for (int64_t head = 0; head < command.query_heads; ++head, partials += parts * stride) {
      if (span.tokens == 0) continue;
      double largest = -INFINITY;
      for (int64_t part = 0; part < used; ++part) largest = std::max<double>(largest, partials[part * stride]);
      for (int64_t i = 0; i < command.values.dim; ++i) {
        double sum = 0;
        double total = 0;
        for (int64_t part = 0; part < used; ++part) {
          const double factor = std::exp2(partials[part * stride] - largest);
          total += factor * partials[part * stride + 1];
          sum += factor * partials[part * stride + kPartialHeader + i];
        }
        Store(OutputAt(command, span.first_row, head), command.row_dtype, i, static_cast<float>(sum / total));
      }
    }
  }
}

}  // namespace vkv::kernels::reference
