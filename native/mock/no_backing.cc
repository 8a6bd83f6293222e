#include "mock/no_backing.h"

#include <algorithm>

#include "mock/host_backing.h"

namespace vkv::mock {
namespace {

// Addresses as a process has them on a machine with 48 bits: above the first TiB, below the middle of the
// space.
constexpr uint64_t kFirstAddress = uint64_t{1} << 40;
constexpr uint64_t kEndAddress = uint64_t{1} << 47;

uint64_t RoundUp(uint64_t address, uint64_t alignment_bytes) {
  return (address + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

}  // namespace

bool NoBacking::Reserve(uint64_t bytes, uint64_t alignment_bytes, uint64_t& address) {
  address = FindHole(std::max(next_, kFirstAddress), bytes, alignment_bytes);
  if (address == 0) address = FindHole(kFirstAddress, bytes, alignment_bytes);
  if (address == 0) return false;
  reservations_[address] = bytes;
  next_ = address + bytes;
  return true;
}

uint64_t NoBacking::FindHole(uint64_t from, uint64_t bytes, uint64_t alignment_bytes) const {
  uint64_t candidate = RoundUp(from, alignment_bytes);
  auto next = reservations_.upper_bound(candidate);
  if (next != reservations_.begin()) {
    const auto& [address, taken_bytes] = *std::prev(next);
    candidate = std::max(candidate, RoundUp(address + taken_bytes, alignment_bytes));
  }
  while (next != reservations_.end() && next->first - std::min(candidate, next->first) < bytes) {
    candidate = RoundUp(next->first + next->second, alignment_bytes);
    ++next;
  }
  return candidate < kEndAddress && bytes <= kEndAddress - candidate ? candidate : 0;
}

Status OpenBacking(const MockOptions& options, std::unique_ptr<Backing>& backing) {
  if (options.backing == BackingMode::kReal) return HostBacking::Open(backing);
  backing = std::make_unique<NoBacking>();
  return Ok();
}

}  // namespace vkv::mock
