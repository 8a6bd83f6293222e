#include "slot_windows.h"

#include <algorithm>
#include <bit>

#include "host/machine.h"

namespace vkv {
namespace {

// Share of the kernel's limit of mappings: drivers keep to half, and at the limit even malloc fails.
constexpr uint64_t LimitOfAllMappings(uint64_t kernel_limit) { return kernel_limit / 4 * 3; }
// How many mappings may be made between two counts, since other threads make mappings too.
constexpr uint64_t ShareOfSpare(uint64_t spare) { return spare / 16; }

constexpr uint64_t kMostBytes = uint64_t{1} << 32;              // of an ArrayBuffer that Node-API makes
constexpr uint64_t kLargestAlignmentBytes = uint64_t{2} << 20;  // huge pages

}  // namespace

Status SlotWindows::Show(int32_t slot, size_t reservation, uint64_t from, uint64_t to, uint64_t& address) {
  const Layout& layout = cache_.layout();
  const uint64_t first_byte = cache_.FirstByte(slot, reservation);
  const uint64_t slot_start = cache_.address(reservation) + layout.RowOffset(slot, 0, reservation);
  if (from < first_byte)
    return Fail(Code::kCopyOutOfRange, "view", static_cast<int64_t>(slot_start + from),
                static_cast<int64_t>(to - from));
  const uint64_t least_bytes = to - first_byte;
  const uint64_t most = std::min(layout.StripeBytes(reservation), kMostBytes);
  const uint64_t whole_pages = CeilDiv(least_bytes, layout.page_bytes()) * layout.page_bytes();
  const uint64_t bytes = std::max(least_bytes, std::min(whole_pages, most));
  std::vector<SlotWindow>& windows = by_slot_[slot];
  // A window that could not be extended stays too small; the last one of a reservation is used.
  const auto known = std::find_if(windows.rbegin(), windows.rend(),
                                  [&](const SlotWindow& entry) { return entry.reservation == reservation; });
  host::Window* window = known == windows.rend() ? nullptr : known->window.get();
  if (window != nullptr && window->bytes() < bytes) window = nullptr;
  const uint64_t shown = window == nullptr ? 0 : window->shown_bytes();
  if (shown < bytes) {
    const uint64_t start = slot_start + first_byte + shown;
    const std::vector<uint64_t> runs = Runs(start, bytes - shown);
    VKV_RETURN_IF_ERROR(TakeMappings(host::Window::MappingsFor(runs.size())));
    if (window == nullptr) {
      const uint64_t alignment = std::min(uint64_t{1} << std::countr_zero(layout.page_bytes()), kLargestAlignmentBytes);
      SlotWindow opened{reservation, nullptr};
      VKV_RETURN_IF_ERROR(host::Window::Open(most, alignment, opened.window));
      window = opened.window.get();
      windows.push_back(std::move(opened));
    }
    uint64_t done = 0;
    for (const uint64_t run : runs) {
      VKV_RETURN_IF_ERROR(window->Show(start + done, run, run));
      done += run;
    }
  }
  address = window->address() + (from - first_byte);
  return Ok();
}

// Bytes of the pieces of mapped memory that one call can show, in order.
std::vector<uint64_t> SlotWindows::Runs(uint64_t from, uint64_t bytes) const {
  const uint64_t page_bytes = cache_.layout().page_bytes();
  std::vector<uint64_t> runs;
  for (uint64_t done = 0; done < bytes; done += runs.back()) {
    const uint64_t pages = CeilDiv(bytes - done, page_bytes);
    const uint64_t run = cache_.driver().SharedRunBytes(from + done, pages * page_bytes);
    runs.push_back(std::min(bytes - done, std::max(run, page_bytes)));
  }
  return runs;
}

Status SlotWindows::TakeMappings(uint64_t mappings) {
  if (spare_mappings_ < mappings) {
    const uint64_t limit = LimitOfAllMappings(host::KernelMappingLimit());
    const uint64_t now = host::CountMappings();
    if (now + mappings > limit)
      return Fail(Code::kOutOfMappings, "view", static_cast<int64_t>(now + mappings), static_cast<int64_t>(limit));
    spare_mappings_ = std::max(mappings, ShareOfSpare(limit - now));
  }
  spare_mappings_ -= mappings;
  return Ok();
}

void SlotWindows::Hide(int32_t slot, bool is_escaped) {
  const auto found = by_slot_.find(slot);
  if (found == by_slot_.end()) return;
  for (SlotWindow& entry : found->second) {
    if (is_escaped)
      entry.window->Leave();
    else
      entry.window->Hide();
  }
  if (is_escaped) by_slot_.erase(found);
}

void SlotWindows::Close() {
  for (auto& [slot, windows] : by_slot_)
    for (SlotWindow& entry : windows)
      if (entry.window->shown_bytes() > 0) entry.window->Leave();
  by_slot_.clear();
}

}  // namespace vkv
