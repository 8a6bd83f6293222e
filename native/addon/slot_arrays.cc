#include "addon/slot_arrays.h"

#include <algorithm>
#include <array>

#include "addon/arguments.h"

namespace vkv::addon {
namespace {

constexpr size_t kNewsNumbers = 4;

}  // namespace

void SlotArrays::Open(Napi::Int32Array rows, Napi::Uint8Array quarantined, Napi::Int32Array first) {
  rows_ = Napi::Persistent(rows);
  quarantined_ = Napi::Persistent(quarantined);
  if (!first.IsEmpty()) first_ = Napi::Persistent(first);
  news_ = Napi::Persistent(Napi::Float64Array::New(rows.Env(), kNewsNumbers));
}

void SlotArrays::Close() {
  rows_.Reset();
  quarantined_.Reset();
  first_.Reset();
  news_.Reset();
}

Status SlotArrays::WriteSlots(KvCache& cache) {
  if (!is_open()) return Ok();
  Bytes rows, quarantined, first;
  const Napi::Env env = rows_.Env();
  const bool has_first = !first_.IsEmpty();
  const bool is_there = ReadArray(env, rows_.Value(), napi_int32_array, rows) &&
                        ReadArray(env, quarantined_.Value(), napi_uint8_array, quarantined) &&
                        (!has_first || ReadArray(env, first_.Value(), napi_int32_array, first));
  const auto slots = static_cast<size_t>(cache.layout().slots());
  const size_t row_bytes = slots * sizeof(int32_t);
  if (!is_there || rows.bytes < row_bytes || quarantined.bytes < slots || (has_first && first.bytes < row_bytes))
    return Fail(Code::kInternal, "arrays of a cache", static_cast<int64_t>(rows.bytes));
  cache.Publish({static_cast<int32_t*>(rows.data), slots}, {static_cast<uint8_t*>(quarantined.data), slots},
                {static_cast<int32_t*>(first.data), has_first ? slots : 0});
  return Ok();
}

Status SlotArrays::WriteNews(const MapperState& state, KvCache& cache) {
  Bytes news;
  if (!ReadArray(news_.Env(), news_.Value(), napi_float64_array, news) || news.bytes < kNewsNumbers * sizeof(double))
    return Fail(Code::kInternal, "news of a cache", static_cast<int64_t>(news.bytes));
  const std::array<double, kNewsNumbers> numbers = {
      static_cast<double>(state.late_errors), static_cast<double>(state.dropped_requests), state.is_idle ? 1.0 : 0.0,
      static_cast<double>(cache.pool().available())};
  std::ranges::copy(numbers, static_cast<double*>(news.data));
  return Ok();
}

}  // namespace vkv::addon
