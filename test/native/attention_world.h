// AttentionWorld: a random attention command over memory of its own, for programs that hold a kernel against its
// reference. Whatever a pass may not load holds NaN, and whole pages of it fault: tokens before the first that a
// sequence's new tokens see, those behind its end, and slots without new tokens. Include it behind kernel_probe.h.
#ifndef VKV_TEST_ATTENTION_WORLD_H_
#define VKV_TEST_ATTENTION_WORLD_H_

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/commands.h"
#include "kernels/float16.h"

namespace vkv::probe {

using kernels::AttentionCommand;
using kernels::Dtype;
using kernels::Span;

constexpr size_t kGuardBytes = 4096;

inline size_t RoundUp(size_t value, size_t step) { return (value + step - 1) / step * step; }

// Zeroed memory, in which pages can be made to fault.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t bytes) : bytes_(RoundUp(bytes, kGuardBytes)) {
    void* const data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) std::abort();
    data_ = static_cast<uint8_t*>(data);
  }
  GuardedBytes(const GuardedBytes& other) : GuardedBytes(other.bytes_) { std::memcpy(data_, other.data_, bytes_); }
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  ~GuardedBytes() { munmap(data_, bytes_); }

  uint8_t* data() const { return data_; }
  uint64_t at(size_t offset) const { return reinterpret_cast<uint64_t>(data_) + offset; }

  // The whole pages of [from, to).
  void Guard(size_t from, size_t to) {
    from = RoundUp(from, kGuardBytes);
    to = to / kGuardBytes * kGuardBytes;
    if (from < to && mprotect(data_ + from, to - from, PROT_NONE) != 0) std::abort();
  }
  void Open() {
    if (mprotect(data_, bytes_, PROT_READ | PROT_WRITE) != 0) std::abort();
  }

 private:
  uint8_t* data_ = nullptr;
  const size_t bytes_;
};

inline void FillFloats(uint64_t address, Dtype dtype, size_t count, float spread = 1) {
  for (size_t i = 0; i < count; ++i) {
    const float value = spread * NextFloat();
    if (dtype == Dtype::kFloat32) reinterpret_cast<float*>(address)[i] = value;
    if (dtype == Dtype::kFloat16) reinterpret_cast<kernels::Half*>(address)[i] = kernels::ToHalf(value);
    if (dtype == Dtype::kBfloat16) reinterpret_cast<kernels::Bfloat*>(address)[i] = kernels::ToBfloat(value);
  }
}

inline float FloatAt(uint64_t address, Dtype dtype, size_t i) {
  if (dtype == Dtype::kFloat32) return reinterpret_cast<const float*>(address)[i];
  if (dtype == Dtype::kFloat16) return kernels::ToFloat(reinterpret_cast<const kernels::Half*>(address)[i]);
  return kernels::ToFloat(reinterpret_cast<const kernels::Bfloat*>(address)[i]);
}

class AttentionWorld {
 public:
  static constexpr int kSlots = 3;

  // `longest`: tokens of the first slot, with few heads; 0: any. `has_rules`: maybe a window, chunks, a cap, sinks.
  static AttentionWorld Random(bool is_decoding, int longest, bool has_rules) {
    Shape shape;
    AttentionCommand& command = shape.command;
    command.cache_dtype = static_cast<Dtype>(Next() % 3);
    command.row_dtype = static_cast<Dtype>(Next() % 3);
    const int dim = Pick({8, 13, 40, 64, 64, 80, 128, 128, 160, 256});
    const int value_dim = Pick({dim, dim, dim, 24});
    const int kv_heads = longest != 0 ? 1 : Pick({1, 2, 3});
    const int group = longest != 0 ? 1 : Pick({1, 1, 2, 4, 5, 8, 11});
    const bool is_long = is_decoding && (longest != 0 || Next() % 4 == 0);
    shape.tokens = longest != 0 ? longest : is_long ? 700 : 190;
    const auto element = static_cast<size_t>(ElementBytes(command.cache_dtype));
    const size_t layers = Next() % 2 == 0 ? 1 : 2;  // two: the tensors of a token lie side by side
    const size_t key_bytes = kv_heads * dim * element;
    const size_t value_bytes = kv_heads * value_dim * element;
    shape.is_fused = Next() % 2 == 0;  // K and V of a token together
    const size_t key_token = shape.is_fused ? layers * (key_bytes + value_bytes) : layers * key_bytes;
    const size_t value_token = shape.is_fused ? key_token : layers * value_bytes;
    const size_t key_slot = RoundUp(shape.tokens * key_token, kGuardBytes);
    const size_t value_slot = shape.is_fused ? key_slot : RoundUp(shape.tokens * value_token, kGuardBytes);
    const size_t values_at = shape.is_fused ? key_bytes : kSlots * key_slot;
    for (int slot = 0; slot < kSlots; ++slot) {
      const int tokens = is_decoding ? Pick({0, 1, 1, 1}) : Pick({0, 1, 2, 17, 33, 50});
      const int length = is_long && slot == 0 ? shape.tokens - 1 : Pick({0, 1, 2, 15, 31, 39, 140});
      shape.spans.push_back({kSlots - 1 - slot, length, tokens, shape.rows});
      shape.rows += tokens;
    }
    shape.cache_bytes = shape.is_fused ? kSlots * key_slot : kSlots * (key_slot + value_slot);
    const auto row_bytes = static_cast<size_t>(ElementBytes(command.row_dtype));
    command.query_heads = kv_heads * group;
    command.queries = RoundUp(shape.cache_bytes, kGuardBytes);
    command.output = RoundUp(command.queries + shape.rows * command.query_heads * dim * row_bytes, 256);
    shape.outputs = static_cast<size_t>(shape.rows) * command.query_heads * value_dim;
    shape.sinks_at = RoundUp(command.output + shape.outputs * row_bytes, 256);
    const auto bytes = [](size_t count) { return static_cast<int64_t>(count); };
    command.keys = {0, bytes(key_slot), bytes(key_token), bytes(dim * element), kv_heads, dim};
    command.values = {values_at, bytes(value_slot), bytes(value_token), bytes(value_dim * element),
                      kv_heads,  value_dim};
    // Queries of any magnitude, also where 16-bit floats have none or are coarse.
    shape.spread =
        command.row_dtype == Dtype::kFloat16 ? 1.0f / Pick({1, 1, 1000}) : std::ldexp(1.0f, Pick({0, 0, 40, -40}));
    command.scale = 0.4f / shape.spread;
    if (has_rules) {
      if (Next() % 2 == 0) command.window = Pick({1, 2, 5, 16, 31, 32, 33, 70, 128, 300, INT32_MAX});
      if (command.window == 0 && Next() % 2 == 0) command.chunk = Pick({1, 3, 16, 32, 40, 64, 100, INT32_MAX});
      if (Next() % 3 == 0) command.softcap = 0.5f * static_cast<float>(Pick({1, 4, 100}));
      if (Next() % 3 == 0) command.sinks = shape.sinks_at;
    }
    return AttentionWorld(shape);
  }

  AttentionCommand command() const {
    AttentionCommand command = shape_.command;
    for (uint64_t* const address :
         {&command.keys.address, &command.values.address, &command.queries, &command.output}) {
      *address = bytes_.at(*address);
    }
    if (command.sinks != 0) command.sinks = bytes_.at(command.sinks);
    return command;
  }
  const std::vector<Span>& spans() const { return shape_.spans; }

  // Makes what a pass over `spans` may not load fault, and nothing else.
  void Guard(const std::vector<Span>& spans) {
    bytes_.Open();
    ForEachHidden(spans, [&](size_t from, size_t to) { bytes_.Guard(from, to); });
  }

  // Each span cut in two, which may be empty: what a first pass computes, and what a second does.
  void Cut(std::vector<Span>& first, std::vector<Span>& second) const {
    for (const Span& span : shape_.spans) {
      const auto tokens = static_cast<int32_t>(Next() % (span.tokens + 1));
      first.push_back({span.slot, span.length, tokens, span.first_row});
      second.push_back({span.slot, span.length + tokens, span.tokens - tokens, span.first_row + tokens});
    }
  }

  std::vector<uint8_t> TakeOutput() {
    uint8_t* const output = bytes_.data() + shape_.command.output;
    const size_t bytes = shape_.outputs * ElementBytes(shape_.command.row_dtype);
    std::vector<uint8_t> taken(output, output + bytes);
    std::memset(output, 0xff, bytes);
    return taken;
  }

  // What is wrong with the output where `right` has that of the reference; empty: nothing.
  std::string Compare(const AttentionWorld& right) const {
    const Dtype dtype = shape_.command.row_dtype;
    const float allowed = dtype == Dtype::kFloat32 ? 4e-6f : dtype == Dtype::kFloat16 ? 1e-3f : 8e-3f;
    for (size_t i = 0; i < shape_.outputs; ++i) {
      const float difference =
          std::fabs(FloatAt(command().output, dtype, i) - FloatAt(right.command().output, dtype, i));
      if (!(difference <= allowed))
        return Name() + ": output " + std::to_string(i) + " off by " + std::to_string(difference);
    }
    return {};
  }

  std::string Name() const {
    const AttentionCommand& command = shape_.command;
    return "dim " + std::to_string(command.keys.dim) + ", value dim " + std::to_string(command.values.dim) +
           ", group " + std::to_string(command.query_heads / command.keys.heads) + ", window " +
           std::to_string(command.window) + ", chunk " + std::to_string(command.chunk) + ", cap " +
           std::to_string(command.softcap) + (command.sinks != 0 ? ", sinks" : "");
  }

 private:
  struct Shape {
    AttentionCommand command;  // addresses are offsets from the first byte
    std::vector<Span> spans;
    int tokens = 0;  // of a slot
    int rows = 0;
    bool is_fused = false;
    float spread = 1;
    size_t cache_bytes = 0;
    size_t sinks_at = 0;
    size_t outputs = 0;
  };

  explicit AttentionWorld(const Shape& shape)
      : shape_(shape), bytes_(shape.sinks_at + sizeof(float) * shape.command.query_heads) {
    const AttentionCommand command = this->command();
    FillFloats(bytes_.at(0), command.cache_dtype, shape.cache_bytes / ElementBytes(command.cache_dtype));
    FillFloats(command.queries, command.row_dtype,
               static_cast<size_t>(shape.rows) * command.query_heads * command.keys.dim, shape.spread);
    auto* const sinks = reinterpret_cast<float*>(bytes_.at(shape.sinks_at));
    for (int head = 0; head < command.query_heads; ++head)
      sinks[head] = Next() % 8 == 0 ? -INFINITY : static_cast<float>(Pick({1, 4, 30})) * NextFloat();
    ForEachHidden(shape.spans, [&](size_t from, size_t to) { std::memset(bytes_.data() + from, 0xff, to - from); });
    TakeOutput();
  }

  // Calls `call(from, to)` for the ranges of the cache that a pass over `spans` may not load.
  template <typename Call>
  void ForEachHidden(const std::vector<Span>& spans, const Call& call) const {
    for (const Span& span : spans) {
      for (const kernels::Tensor* tensor : {&shape_.command.keys, &shape_.command.values}) {
        if (shape_.is_fused && tensor == &shape_.command.values) continue;  // they lie between the keys
        const size_t slot = tensor->address + span.slot * tensor->slot_bytes;
        const auto at = [&](int64_t token) { return slot + static_cast<size_t>(token * tensor->token_bytes); };
        const int64_t first = span.tokens == 0 ? shape_.tokens : FirstSeen(shape_.command, span.length);
        call(at(0), at(first));
        if (span.tokens != 0) call(at(span.length + span.tokens), slot + static_cast<size_t>(tensor->slot_bytes));
      }
    }
  }

  const Shape shape_;
  GuardedBytes bytes_;
};

}  // namespace vkv::probe

#endif  // VKV_TEST_ATTENTION_WORLD_H_
