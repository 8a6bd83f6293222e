#include "pinned_arena.h"

#include <algorithm>
#include <utility>

namespace vkv {
namespace {

// Of the file, mapped by one call: addresses cost nothing.
constexpr uint64_t kBlockBytes = uint64_t{1} << 30;

// Of a run, so that it goes with others in one operation: longer ones take the device's own copies longer than it takes
// to start them, and leave its processors to the engine.
constexpr uint64_t kMostShortBytes = 64 << 10;

constexpr uint64_t BlockOf(uint64_t offset) { return offset / kBlockBytes * kBlockBytes; }

}  // namespace

std::shared_ptr<PinnedArena> PinnedArena::Open(std::shared_ptr<Driver> device, std::shared_ptr<DriverHost> host,
                                               std::unique_ptr<RowScatter> scatter) {
  DriverHost& pages = *host;
  std::shared_ptr<PinnedArena> arena(new PinnedArena(std::move(device), std::move(host), std::move(scatter)));
  pages.AddListener(arena);
  return arena;
}

PinnedArena::~PinnedArena() {
  const DriverScope device(*device_);
  const DriverScope host(*host_);
  (void)Close();
}

PinnedArena::Ranges::iterator PinnedArena::FirstBehind(uint64_t offset) {
  auto found = registered_.upper_bound(offset);
  if (found != registered_.begin() && std::prev(found)->second.end > offset) --found;
  return found;
}

Status PinnedArena::Copy(uint64_t source, std::span<const Run> runs, uint64_t page_bytes, Stream stream) {
  {
    std::lock_guard lock(mutex_);
    is_queueing_ = true;
  }
  const Status status = CopyEach(source, runs, page_bytes, stream);
  {
    std::lock_guard lock(mutex_);
    is_queueing_ = false;
    stream_ = stream;
    ++copies_;
  }
  queued_.notify_all();
  return status;
}

// One copy for each run of pages that follow each other in the arena, and one operation for all short ones.
Status PinnedArena::CopyEach(uint64_t source, std::span<const Run> runs, uint64_t page_bytes, Stream stream) {
  short_.clear();
  uint64_t short_at = 0;  // where the last of them goes for the CPU
  for (const Run& run : runs) {
    for (uint64_t done = 0; done < run.bytes;) {
      Place place;
      VKV_RETURN_IF_ERROR(Find(run.to + done, run.bytes - done, page_bytes, place));
      const uint64_t from = run.from + done;
      done += place.bytes;
      if (place.on_device != 0 && place.bytes <= kMostShortBytes && from <= UINT32_MAX) {
        short_.push_back({place.on_device, static_cast<uint32_t>(from), static_cast<uint32_t>(place.bytes)});
        short_at = place.address;
        continue;
      }
      void* const target = reinterpret_cast<void*>(place.address);
      VKV_RETURN_IF_ERROR(device_->Download(target, source + from, place.bytes, stream));
    }
  }
  if (short_.empty()) return Ok();
  if (short_.size() > 1) return scatter_->Scatter(source, short_, stream);
  const PlacedRows& only = short_.front();
  return device_->Download(reinterpret_cast<void*>(short_at), source + only.from, only.bytes, stream);
}

Status PinnedArena::Find(uint64_t address, uint64_t bytes, uint64_t page_bytes, Place& place) {
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
  uint64_t on_device = 0;  // of `first`
  {
    std::lock_guard lock(mutex_);
    const auto next = FirstBehind(first);
    if (next != registered_.end() && next->first <= first) {
      is_registered = true;
      end = std::min(end, next->second.end);
      if (next->second.on_device != 0) on_device = next->second.on_device + (first - next->first);
    } else if (next != registered_.end()) {
      end = std::min(end, next->first);
    }
    may_register = !is_refused_;
  }
  // A page that a block cuts is not registered: a block is a multiple of every usual page.
  if (!is_registered && may_register && end - first >= page_bytes) {
    end = first + (end - first) / page_bytes * page_bytes;
    VKV_RETURN_IF_ERROR(Register(first, end, is_registered, on_device));
  }
  place = {address, std::min(bytes, end - offset), is_registered, on_device == 0 ? 0 : on_device + inside};
  uint64_t block = 0;
  if (is_registered) VKV_RETURN_IF_ERROR(BlockAddress(first, block));
  std::lock_guard lock(mutex_);
  if (is_registered) {
    place.address = block + (offset - BlockOf(first));
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

Status PinnedArena::Register(uint64_t from, uint64_t to, bool& is_registered, uint64_t& on_device) {
  uint64_t block = 0;
  Status status = BlockAddress(from, block);
  const uint64_t address = block + (from - BlockOf(from));
  if (status.ok()) status = device_->RegisterHost(address, to - from);
  if (status.code == Code::kDriverLost) return status;
  is_registered = status.ok();
  if (is_registered && scatter_) {
    // Where it is refused, copies go there one by one.
    status = device_->FindOnDevice(address, on_device);
    if (!status.ok()) on_device = 0;
  }
  std::lock_guard lock(mutex_);
  is_refused_ = !is_registered;
  if (!is_registered) return Ok();
  registered_[from] = {to, on_device};
  counts_.registered_bytes += to - from;
  return status.code == Code::kDriverLost ? status : Ok();
}

Status PinnedArena::Unregister(uint64_t from, uint64_t to) {
  std::optional<Stream> stream;
  uint64_t copies = 0;  // that the wait covers
  uint64_t block = 0;
  {
    std::lock_guard lock(mutex_);
    stream = stream_;
    copies = copies_;
    block = blocks_.at(BlockOf(from));
  }
  Status status = stream ? device_->SynchronizeStream(*stream) : Ok();
  if (status.ok()) {
    std::lock_guard lock(mutex_);
    if (copies_ == copies) stream_.reset();
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
    std::pair<uint64_t, Range> range;
    {
      std::unique_lock lock(mutex_);
      queued_.wait(lock, [this] { return !is_queueing_; });
      const auto found = FirstBehind(offset);
      if (found == registered_.end() || found->first >= offset + bytes) return Ok();
      range = *found;
      registered_.erase(found);
    }
    const DriverScope scope(*device_);
    Status status = scope.status();
    if (status.ok() || status.code == Code::kDriverLost) status = Unregister(range.first, range.second.end);
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
