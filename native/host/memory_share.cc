#include "host/memory_share.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "host/machine.h"
#include "host/page_file.h"

namespace vkv::host {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kPartUnasked = 8;
constexpr std::chrono::milliseconds kFresh{100};

// A mutable global because memory is the process's: drivers of several threads draw on the same cgroup.
// Constant-initialised and trivially destroyed.
struct Shares {
  std::mutex mutex;  // held across fork(), so that the child finds it whole
  MemoryShare* first = nullptr;
  uint64_t unasked_bytes = 0;  // that may be taken before the kernel is asked again
  Clock::time_point fresh_until{};
};
constinit Shares shares;

}  // namespace

MemoryShare::MemoryShare(const PageFile& file, std::string root) : file_(file), root_(std::move(root)) {
  std::lock_guard lock(shares.mutex);
  next_ = shares.first;
  if (next_ != nullptr) next_->previous_ = this;
  shares.first = this;
}

MemoryShare::~MemoryShare() {
  std::lock_guard lock(shares.mutex);
  if (next_ != nullptr) next_->previous_ = previous_;
  (previous_ != nullptr ? previous_->next_ : shares.first) = next_;
}

bool MemoryShare::Take(uint64_t bytes) {
  std::lock_guard lock(shares.mutex);
  const Clock::time_point now = Clock::now();
  if (shares.unasked_bytes >= bytes && now < shares.fresh_until) {
    shares.unasked_bytes -= bytes;
  } else {
    const uint64_t available = AvailableLocked();
    if (bytes > available) {
      shares.unasked_bytes = 0;
      return false;
    }
    shares.unasked_bytes = (available - bytes) / kPartUnasked;
    shares.fresh_until = now + kFresh;
  }
  taken_bytes_ += bytes;
  return true;
}

void MemoryShare::Give(uint64_t bytes) {
  std::lock_guard lock(shares.mutex);
  taken_bytes_ -= bytes;
}

uint64_t MemoryShare::available_bytes() const {
  std::lock_guard lock(shares.mutex);
  return AvailableLocked();
}

uint64_t MemoryShare::AvailableLocked() const {
  const MemoryRoom room = FindMemoryRoom(root_);
  uint64_t spoken_for = HeadroomBytes(room.limit_bytes);
  for (const MemoryShare* share = shares.first; share != nullptr; share = share->next_) {
    uint64_t resident = 0;
    if (!share->file_.ResidentBytes(resident).ok()) resident = 0;
    spoken_for += share->taken_bytes_ - std::min(resident, share->taken_bytes_);
  }
  return room.available_bytes - std::min(spoken_for, room.available_bytes);
}

void MemoryShare::BeforeFork() { shares.mutex.lock(); }

void MemoryShare::AfterFork(bool is_child) {
  if (is_child) {
    shares.first = nullptr;
    shares.unasked_bytes = 0;
  }
  shares.mutex.unlock();
}

}  // namespace vkv::host
