#include "pinned_arena.h"

#include <algorithm>
#include <utility>

namespace vkv {
namespace {

// Of the file, mapped by one call: addresses cost nothing.
constexpr uint64_t kBlockBytes = uint64_t{1} << 30;

constexpr uint64_t BlockOf(uint64_t offset) { return offset / kBlockBytes * kBlockBytes; }

}  // namespace

std::shared_ptr<PinnedArena> PinnedArena::Open(std::shared_ptr<Driver> device, std::shared_ptr<DriverHost> host) {
  DriverHost& pages = *host;
  std::shared_ptr<PinnedArena> arena(new PinnedArena(std::move(device), std::move(host)));
  pages.AddListener(arena);
  return arena;
}

PinnedArena::~PinnedArena() {
  const DriverScope device(*device_);
  const DriverScope host(*host_);
  (void)Close();
}

std::map<uint64_t, uint64_t>::iterator PinnedArena::FirstBehind(uint64_t offset) {
  auto found = registered_.upper_bound(offset);
  if (found != registered_.begin() && std::prev(found)->second > offset) --found;
  return found;
}

Status PinnedArena::Find(uint64_t address, uint64_t bytes, uint64_t page_bytes, Stream stream, Place& place) {
  const uint64_t inside = address % page_bytes;
  const uint64_t pages_bytes = (inside + bytes + page_bytes - 1) / page_bytes * page_bytes;
  uint64_t first = 0;
  uint64_t run_bytes = 0;
  if (!host_->FindInFile(address - inside, pages_bytes, first, run_bytes))
    return Fail(Code::kInternal, "PinnedArena", static_cast<int64_t>(address), static_cast<int64_t>(bytes));
  const uint64_t offset = first + inside;
  uint64_t end = std::min(first + run_bytes, BlockOf(first) + kBlockBytes);
  bool is_registered = false;
  bool may_register = false;
  {
    std::lock_guard lock(mutex_);
    const auto next = FirstBehind(first);
    if (next != registered_.end() && next->first <= first) {
      is_registered = true;
      end = std::min(end, next->second);
    } else if (next != registered_.end()) {
      end = std::min(end, next->first);
    }
    may_register = !is_refused_;
  }
  // A page that a block cuts is not registered: a block is a multiple of every usual page.
  if (!is_registered && may_register && end - first >= page_bytes) {
    end = first + (end - first) / page_bytes * page_bytes;
    VKV_RETURN_IF_ERROR(Register(first, end, is_registered));
  }
  place = {address, std::min(bytes, end - offset), is_registered};
  uint64_t block = 0;
  if (is_registered) VKV_RETURN_IF_ERROR(BlockAddress(first, block));
  std::lock_guard lock(mutex_);
  if (is_registered) {
    place.address = block + (offset - BlockOf(first));
    stream_ = stream;
  } else {
    counts_.pageable_bytes += place.bytes;
  }
  return Ok();
}

Status PinnedArena::BlockAddress(uint64_t offset, uint64_t& address) {
  {
    std::lock_guard lock(mutex_);
    const auto known = blocks_.find(BlockOf(offset));
    if (known != blocks_.end()) {
      address = known->second;
      return Ok();
    }
  }
  VKV_RETURN_IF_ERROR(host_->MapLinear(BlockOf(offset), kBlockBytes, address));
  std::lock_guard lock(mutex_);
  blocks_[BlockOf(offset)] = address;
  return Ok();
}

Status PinnedArena::Register(uint64_t from, uint64_t to, bool& is_registered) {
  uint64_t block = 0;
  Status status = BlockAddress(from, block);
  if (status.ok()) status = device_->RegisterHost(block + (from - BlockOf(from)), to - from);
  if (status.code == Code::kDriverLost) return status;
  is_registered = status.ok();
  std::lock_guard lock(mutex_);
  is_refused_ = !is_registered;
  if (!is_registered) return Ok();
  registered_[from] = to;
  counts_.registered_bytes += to - from;
  return Ok();
}

Status PinnedArena::Unregister(uint64_t from, uint64_t to) {
  std::optional<Stream> stream;
  uint64_t block = 0;
  {
    std::lock_guard lock(mutex_);
    stream = stream_;
    block = blocks_.at(BlockOf(from));
  }
  Status status = stream ? device_->SynchronizeStream(*stream) : Ok();
  if (status.ok()) {
    std::lock_guard lock(mutex_);
    stream_.reset();
  }
  if (status.ok()) status = device_->UnregisterHost(block + (from - BlockOf(from)));
  if (!status.ok() && status.code != Code::kDriverLost) return status;  // a lost device writes nothing any more
  std::lock_guard lock(mutex_);
  counts_.registered_bytes -= to - from;
  is_refused_ = false;
  return Ok();
}

Status PinnedArena::BeforeRelease(uint64_t offset, uint64_t bytes) {
  for (;;) {
    std::pair<uint64_t, uint64_t> range;
    {
      std::lock_guard lock(mutex_);
      const auto found = FirstBehind(offset);
      if (found == registered_.end() || found->first >= offset + bytes) return Ok();
      range = *found;
      registered_.erase(found);
    }
    const DriverScope scope(*device_);
    Status status = scope.status();
    if (status.ok() || status.code == Code::kDriverLost) status = Unregister(range.first, range.second);
    if (status.ok()) continue;
    std::lock_guard lock(mutex_);
    registered_.insert(range);
    return status;
  }
}

PinnedArena::Counts PinnedArena::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

Status PinnedArena::Close() {
  VKV_RETURN_IF_ERROR(BeforeRelease(0, UINT64_MAX));
  std::map<uint64_t, uint64_t> blocks;
  {
    std::lock_guard lock(mutex_);
    blocks = blocks_;
  }
  for (const auto& [offset, address] : blocks) {
    VKV_RETURN_IF_ERROR(host_->UnmapLinear(address, kBlockBytes));
    std::lock_guard lock(mutex_);
    blocks_.erase(offset);
  }
  return Ok();
}

}  // namespace vkv
