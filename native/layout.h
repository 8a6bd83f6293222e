// Layout: where the pages of a slot lie, by bytes.
//
// A reservation holds `slots` stripes; a stripe holds max_tokens tokens of token_bytes[i] each. The unit of growth is
// the row: after r rows, reservation i has ceil(r * s_i / s_max) pages of a slot, so that every row covers the same
// range of tokens everywhere; with equal tensors that is one page per reservation and row. It counts bytes,
// never whole tokens per page. Pure arithmetic, the same as lib/layout/layout.ts (a test compares them).
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
      : page_bytes_(page_bytes),
        slots_(slots),
        max_tokens_(max_tokens),
        token_bytes_(std::move(token_bytes)),
        max_token_bytes_(token_bytes_.empty() ? 0 : std::ranges::max(token_bytes_)) {}

  uint64_t page_bytes() const { return page_bytes_; }
  uint64_t slots() const { return slots_; }
  uint64_t max_tokens() const { return max_tokens_; }
  size_t reservations() const { return token_bytes_.size(); }
  uint64_t token_bytes(size_t i) const { return token_bytes_[i]; }

  uint64_t StripePages(size_t i) const { return CeilDiv(max_tokens_ * token_bytes_[i], page_bytes_); }
  uint64_t StripeBytes(size_t i) const { return StripePages(i) * page_bytes_; }
  uint64_t ReservationBytes(size_t i) const { return StripeBytes(i) * slots_; }
  uint64_t RowsFor(uint64_t tokens) const { return CeilDiv(tokens * max_token_bytes_, page_bytes_); }
  // The row in which a token begins.
  uint64_t RowOf(uint64_t token) const { return token * max_token_bytes_ / page_bytes_; }
  uint64_t MaxRows() const { return RowsFor(max_tokens_); }

  // Pages of one slot in reservation i once it has `rows` rows.
  uint64_t PagesAfter(uint64_t rows, size_t i) const {
    return std::min(CeilDiv(rows * token_bytes_[i], max_token_bytes_), StripePages(i));
  }
  // Rows of a group, the unit of sharing: the fewest that end at the same token in every reservation, so that no page
  // of a group holds anything of the next one. One where all tokens have the same size.
  uint64_t GroupRows() const {
    if (token_bytes_.empty()) return 1;
    uint64_t divisor = max_token_bytes_;
    for (const uint64_t bytes : token_bytes_) divisor = std::gcd(divisor, bytes);
    return max_token_bytes_ / divisor;
  }
  bool HasPage(uint64_t row, size_t i) const { return PagesAfter(row + 1, i) > PagesAfter(row, i); }
  uint64_t PagesBetween(uint64_t from_rows, uint64_t to_rows) const {
    uint64_t pages = 0;
    for (size_t i = 0; i < reservations(); ++i) pages += PagesAfter(to_rows, i) - PagesAfter(from_rows, i);
    return pages;
  }
  // Offset in reservation i of the first page that `row` of `slot` adds there.
  uint64_t RowOffset(uint64_t slot, uint64_t row, size_t i) const {
    return slot * StripeBytes(i) + PagesAfter(row, i) * page_bytes_;
  }

 private:
  uint64_t page_bytes_;
  uint64_t slots_;
  uint64_t max_tokens_;
  std::vector<uint64_t> token_bytes_;
  uint64_t max_token_bytes_;
};

}  // namespace vkv

#endif  // VKV_LAYOUT_H_
