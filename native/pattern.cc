#include "pattern.h"

#include <algorithm>
#include <cstring>

namespace vkv {
namespace {

constexpr uint64_t kStageBytes = 1 << 18;  // fits the second-level cache

// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

void RenderToken(uint64_t key, uint64_t tensor, uint64_t token, uint8_t* to, uint64_t bytes) {
  constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
  uint64_t word = Mix(key ^ Mix((tensor << 40) + token + kStep));
  uint64_t at = 0;
  for (; at + 8 <= bytes; at += 8, word += kStep) std::memcpy(to + at, &word, 8);
  std::memcpy(to + at, &word, bytes - at);
}

}  // namespace

Pattern::Pattern(KvCache& cache, std::vector<TensorSpan> tensors)
    : cache_(cache), tensors_(std::move(tensors)), by_reservation_(cache.layout().reservations()) {
  for (uint32_t t = 0; t < tensors_.size(); ++t) by_reservation_[tensors_[t].reservation].push_back(t);
}

uint64_t Pattern::TokensPerStage(size_t reservation) const {
  return std::max<uint64_t>(1, kStageBytes / cache_.layout().token_bytes(reservation));
}

uint64_t Pattern::Address(int32_t slot, size_t reservation, uint64_t token) const {
  const Layout& layout = cache_.layout();
  return cache_.address(reservation) + slot * layout.StripeBytes(reservation) + token * layout.token_bytes(reservation);
}

void Pattern::Render(size_t reservation, uint64_t from, uint64_t tokens, uint64_t key, uint8_t* to) const {
  const uint64_t token_bytes = cache_.layout().token_bytes(reservation);
  for (uint64_t k = 0; k < tokens; ++k)
    for (uint32_t t : by_reservation_[reservation])
      RenderToken(key, t, from + k, to + k * token_bytes + tensors_[t].offset_bytes, tensors_[t].bytes);
}

Status Pattern::Stamp(int32_t slot, uint64_t from, uint64_t tokens, uint64_t key) {
  Driver& driver = cache_.pool().driver();
  DriverScope scope(driver);
  VKV_RETURN_IF_ERROR(scope.status());
  for (size_t i = 0; i < by_reservation_.size(); ++i) {
    const uint64_t token_bytes = cache_.layout().token_bytes(i);
    const uint64_t stage = std::min(tokens, TokensPerStage(i));
    expected_.resize(std::max<uint64_t>(expected_.size(), stage * token_bytes));
    for (uint64_t done = 0; done < tokens; done += stage) {
      const uint64_t count = std::min(stage, tokens - done);
      Render(i, from + done, count, key, expected_.data());
      VKV_RETURN_IF_ERROR(driver.Write(Address(slot, i, from + done), expected_.data(), count * token_bytes));
    }
  }
  return Ok();
}

Status Pattern::Check(int32_t slot, uint64_t from, uint64_t tokens, uint64_t key, uint64_t& wrong_tokens) {
  wrong_tokens = 0;
  Driver& driver = cache_.pool().driver();
  DriverScope scope(driver);
  VKV_RETURN_IF_ERROR(scope.status());
  std::vector<bool> is_wrong(tokens, false);
  for (size_t i = 0; i < by_reservation_.size(); ++i) {
    const uint64_t token_bytes = cache_.layout().token_bytes(i);
    const uint64_t stage = std::min(tokens, TokensPerStage(i));
    expected_.resize(std::max<uint64_t>(expected_.size(), stage * token_bytes));
    found_.resize(std::max<uint64_t>(found_.size(), stage * token_bytes));
    for (uint64_t done = 0; done < tokens; done += stage) {
      const uint64_t count = std::min(stage, tokens - done);
      Render(i, from + done, count, key, expected_.data());
      VKV_RETURN_IF_ERROR(driver.Read(found_.data(), Address(slot, i, from + done), count * token_bytes));
      if (std::memcmp(expected_.data(), found_.data(), count * token_bytes) == 0) continue;
      for (uint64_t k = 0; k < count; ++k)
        if (std::memcmp(&expected_[k * token_bytes], &found_[k * token_bytes], token_bytes) != 0)
          is_wrong[done + k] = true;
    }
  }
  wrong_tokens = std::count(is_wrong.begin(), is_wrong.end(), true);
  return Ok();
}

}  // namespace vkv
