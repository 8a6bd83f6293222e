// Layout: where the pages of a slot lie, by bytes.
//
// A reservation holds `slots` stripes; a stripe holds max_tokens tokens of token_bytes[i] each. The unit of growth and
// of sharing is the row: the fewest pages of each reservation that end at the same token everywhere, at most those of a
// slot. With equal tensors that is one page per reservation. It counts bytes, never whole tokens per page. Pure
// arithmetic, the same as lib/layout/set-layout.ts (a test compares them).
#ifndef VKV_LAYOUT_H_
#define VKV_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace vkv {

inline uint64_t CeilDiv(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

class Layout {
 public:
  // Pre: all numbers positive; slots * stripe fits 63 bits (checked by the binding's caller). Without reservations it
  // has no rows.
  Layout(uint64_t page_bytes, uint64_t slots, uint64_t max_tokens, std::vector<uint64_t> token_bytes)
      : page_bytes_(page_bytes), slots_(slots), max_tokens_(max_tokens), token_bytes_(std::move(token_bytes)) {
    for (const uint64_t bytes : token_bytes_) common_bytes_ = std::gcd(common_bytes_, bytes);
    for (const uint64_t bytes : token_bytes_) {
      row_pages_.push_back(MaxRows() == 1 ? CeilDiv(max_tokens_ * bytes, page_bytes_) : bytes / common_bytes_);
      all_row_pages_ += row_pages_.back();
    }
  }

  uint64_t page_bytes() const { return page_bytes_; }
  uint64_t slots() const { return slots_; }
  uint64_t max_tokens() const { return max_tokens_; }
  size_t reservations() const { return token_bytes_.size(); }
  uint64_t token_bytes(size_t i) const { return token_bytes_[i]; }
  // The greatest common divisor of the tokens' bytes: page_bytes / common_bytes tokens lie in a row.
  uint64_t common_bytes() const { return common_bytes_; }
  // Pages of a row in reservation i, and in all of them.
  uint64_t row_pages(size_t i) const { return row_pages_[i]; }
  uint64_t row_pages() const { return all_row_pages_; }
  uint64_t row_bytes(size_t i) const { return row_pages_[i] * page_bytes_; }

  uint64_t StripeBytes(size_t i) const { return MaxRows() * row_bytes(i); }
  uint64_t ReservationBytes(size_t i) const { return StripeBytes(i) * slots_; }
  uint64_t RowsFor(uint64_t tokens) const { return CeilDiv(tokens * common_bytes_, page_bytes_); }
  // The row in which a token begins.
  uint64_t RowOf(uint64_t token) const { return token * common_bytes_ / page_bytes_; }
  uint64_t MaxRows() const { return RowsFor(max_tokens_); }
  uint64_t PagesOf(uint64_t rows) const { return rows * all_row_pages_; }
  // Pages of rows [from, to) of a slot, as far as it has rows.
  uint64_t PagesBetween(int64_t from, int64_t to) const {
    return PagesOf(std::max<int64_t>(0, std::min<int64_t>(to, MaxRows()) - from));
  }
  // Offset of a slot's row in reservation i.
  uint64_t RowOffset(uint64_t slot, uint64_t row, size_t i) const { return slot * StripeBytes(i) + row * row_bytes(i); }

 private:
  uint64_t page_bytes_;
  uint64_t slots_;
  uint64_t max_tokens_;
  std::vector<uint64_t> token_bytes_;
  uint64_t common_bytes_ = 0;
  std::vector<uint64_t> row_pages_;
  uint64_t all_row_pages_ = 0;
};

}  // namespace vkv

#endif  // VKV_LAYOUT_H_
