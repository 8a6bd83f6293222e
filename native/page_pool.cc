#include "page_pool.h"

#include <algorithm>

namespace vkv {

Status PagePool::Open(std::shared_ptr<Driver> driver, const PoolOptions& options, std::shared_ptr<PagePool>& pool) {
  if (options.page_bytes == 0 || options.page_bytes % driver->info().granularity_bytes != 0)
    return Fail(Code::kInternal, "PagePool::Open", static_cast<int64_t>(options.page_bytes));
  pool.reset(new PagePool(std::move(driver), options));
  return Ok();
}

PagePool::~PagePool() { (void)Close(); }

PoolCounts PagePool::counts() const {
  std::lock_guard lock(mutex_);
  PoolCounts counts;
  counts.budget = budget_;
  counts.created = created_ - creating_ahead_;
  counts.free = free_.size();
  counts.earmarked = earmarked_;
  counts.quarantined = quarantined_;
  counts.in_use = counts.created - free_.size() - quarantined_;
  return counts;
}

int64_t PagePool::AvailableLocked() const {
  const uint64_t in_use = created_ - creating_ahead_ - free_.size();
  return static_cast<int64_t>(budget_) - static_cast<int64_t>(in_use + earmarked_);
}

int64_t PagePool::available() const {
  std::lock_guard lock(mutex_);
  return AvailableLocked();
}

Status PagePool::Earmark(uint64_t pages) {
  std::lock_guard lock(mutex_);
  const int64_t available = std::max<int64_t>(0, AvailableLocked());
  const int64_t wanted = static_cast<int64_t>(pages);
  if (wanted > available) return Fail(Code::kOutOfPages, "Earmark", wanted, available);
  earmarked_ += pages;
  return Ok();
}

void PagePool::DropEarmark(uint64_t pages) {
  std::lock_guard lock(mutex_);
  earmarked_ -= std::min(pages, earmarked_);
}

void PagePool::RestoreEarmark(uint64_t pages) {
  std::lock_guard lock(mutex_);
  earmarked_ += pages;
}

// Kernels' code, cuBLAS and the engine need device memory too, and would fail where the pool can reuse its pages.
Status PagePool::CheckHeadroom(uint64_t pages) {
  if (headroom_bytes_ == 0) return Ok();
  MemoryInfo memory;
  VKV_RETURN_IF_ERROR(driver_->QueryMemory(memory));
  if (memory.free_bytes >= headroom_bytes_ && memory.free_bytes - headroom_bytes_ >= pages * page_bytes_) return Ok();
  return Fail(Code::kOutOfDeviceMemory, "CheckHeadroom", static_cast<int64_t>(page_bytes_),
              static_cast<int64_t>(memory.live_pages));
}

Status PagePool::CreateAhead(bool& is_created) {
  is_created = false;
  {
    std::lock_guard lock(mutex_);
    if (free_.size() + creating_ahead_ >= ready_pages_ || created_ >= budget_ || waiting_ > 0) return Ok();
    ++created_;  // keeps the place until the driver has answered
    ++creating_ahead_;
  }
  PageHandle handle = 0;
  Status status;
  {
    DriverScope scope(*driver_);
    status = scope.status();
    if (status.ok()) status = CheckHeadroom(1);
    if (status.ok()) status = driver_->CreatePage(page_bytes_, /*near=*/0, handle);
  }
  std::lock_guard lock(mutex_);
  if (--creating_ahead_ == 0) none_ahead_.notify_all();
  if (!status.ok()) {
    --created_;
    return status;
  }
  const PageId page = AddLocked(handle);
  pages_[page].references = 0;
  free_.push_back(page);
  is_created = true;
  return Ok();
}

void PagePool::AwaitNoneAhead(std::unique_lock<std::mutex>& lock) {
  ++waiting_;
  none_ahead_.wait(lock, [this] { return creating_ahead_ == 0; });
  --waiting_;
}

Status PagePool::Take(uint64_t earmarked, std::span<const uint64_t> near, std::span<PageId> pages) {
  const uint64_t wanted = near.size();
  // Pages used again far from where they were first mapped do not merge with their neighbours, so each costs the kernel
  // a mapping of its own.
  if (driver_->IsShortOfMappings()) (void)Trim(0);
  uint64_t taken = 0;
  {
    std::unique_lock lock(mutex_);
    if (free_.size() < wanted) AwaitNoneAhead(lock);
    const int64_t available = std::max<int64_t>(0, AvailableLocked());
    const int64_t unearmarked = static_cast<int64_t>(wanted - earmarked);
    if (unearmarked > available) return Fail(Code::kOutOfPages, "Take", unearmarked, available);
    earmarked_ -= earmarked;
    for (; taken < wanted && !free_.empty(); ++taken) {
      pages[taken] = free_.back();
      free_.pop_back();
      pages_[pages[taken]].references = 1;
    }
    created_ += wanted - taken;  // keeps the places until the driver has answered
  }
  const uint64_t reused = taken;
  Status status;
  if (taken < wanted) {
    DriverScope scope(*driver_);
    status = scope.status();
    if (status.ok()) status = CheckHeadroom(wanted - taken);
    for (; status.ok() && taken < wanted; ++taken) {
      PageHandle handle = 0;
      status = driver_->CreatePage(page_bytes_, near[taken], handle);
      if (!status.ok()) break;
      std::lock_guard lock(mutex_);
      pages[taken] = AddLocked(handle);
    }
  }
  if (status.ok()) return Ok();

  // Undo: pages just created go back to the driver (or, if it refuses even that, to the free list), reused ones to the
  // list. The earmark comes first, so that no other thread takes its pages in between.
  RestoreEarmark(earmarked);
  {
    DriverScope scope(*driver_);
    for (uint64_t k = reused; k < taken; ++k) {
      PageHandle handle = 0;
      Handles(std::span(&pages[k], 1), std::span(&handle, 1));
      const bool released = scope.status().ok() && driver_->ReleasePage(handle, page_bytes_).ok();
      std::lock_guard lock(mutex_);
      pages_[pages[k]].references = 0;
      if (released) {
        unused_ids_.push_back(pages[k]);
        --created_;
      } else {
        free_.push_back(pages[k]);
      }
    }
  }
  std::lock_guard lock(mutex_);
  created_ -= wanted - taken;
  for (uint64_t k = reused; k-- > 0;) {
    pages_[pages[k]].references = 0;
    free_.push_back(pages[k]);
  }
  if (status.code == Code::kOutOfDeviceMemory) {
    status.what = static_cast<int64_t>(page_bytes_);
    status.how_many = static_cast<int64_t>(created_);
  }
  return status;
}

PageId PagePool::AddLocked(PageHandle handle) {
  PageId id;
  if (unused_ids_.empty()) {
    id = pages_.Add();
  } else {
    id = unused_ids_.back();
    unused_ids_.pop_back();
  }
  pages_[id] = {handle, 1, driver_->info().has_zeroed_pages ? kCleanTenant : kUnknownTenant, 0};
  return id;
}

void PagePool::Share(std::span<const PageId> pages) {
  std::lock_guard lock(mutex_);
  for (PageId page : pages) ++pages_[page].references;
}

bool PagePool::is_quarantined(PageId page) const {
  std::lock_guard lock(mutex_);
  return pages_[page].quarantines > 0;
}

bool PagePool::is_shared(PageId page) const {
  std::lock_guard lock(mutex_);
  return pages_[page].references - pages_[page].quarantines > 1;
}

void PagePool::Give(std::span<const PageId> pages) {
  std::lock_guard lock(mutex_);
  for (PageId page : pages) {
    if (--pages_[page].references == 0) free_.push_back(page);
  }
}

void PagePool::Quarantine(PageId page) {
  std::lock_guard lock(mutex_);
  ++pages_[page].references;
  if (pages_[page].quarantines++ == 0) ++quarantined_;
}

void PagePool::Handles(std::span<const PageId> pages, std::span<PageHandle> handles) const {
  for (size_t k = 0; k < pages.size(); ++k) handles[k] = pages_[pages[k]].handle;
}

Tenant PagePool::tenant(PageId page) const {
  std::lock_guard lock(mutex_);
  return pages_[page].tenant;
}

void PagePool::set_tenant(std::span<const PageId> pages, Tenant tenant) {
  std::lock_guard lock(mutex_);
  for (PageId page : pages) pages_[page].tenant = tenant;
}

void PagePool::Restore(PageId page) {
  {
    std::lock_guard lock(mutex_);
    if (--pages_[page].quarantines == 0) --quarantined_;
  }
  Give(std::span(&page, 1));
}

Status PagePool::SetBudget(uint64_t budget_bytes) {
  uint64_t before;
  uint64_t keep;  // free pages that may stay
  {
    std::unique_lock lock(mutex_);
    AwaitNoneAhead(lock);
    before = budget_;
    budget_ = budget_bytes / page_bytes_;
    if (created_ <= budget_) return Ok();
    const uint64_t surplus = created_ - budget_;
    keep = surplus < free_.size() ? free_.size() - surplus : 0;
  }
  const Status status = Trim(keep);
  if (status.ok()) return status;
  std::lock_guard lock(mutex_);
  budget_ = before;
  return status;
}

Status PagePool::ReleaseOneFree(bool& released, uint64_t keep) {
  PageId page;
  PageHandle handle;
  {
    std::lock_guard lock(mutex_);
    released = free_.size() > keep;
    if (!released) return Ok();
    page = free_.back();
    free_.pop_back();
    handle = pages_[page].handle;
  }
  const Status status = driver_->ReleasePage(handle, page_bytes_);
  std::lock_guard lock(mutex_);
  if (status.ok() || status.code == Code::kDriverLost) {
    pages_[page].handle = 0;
    unused_ids_.push_back(page);
    --created_;
    return Ok();
  }
  free_.push_back(page);
  return status;
}

Status PagePool::Trim(uint64_t keep) {
  DriverScope scope(*driver_);
  if (!scope.status().ok() && scope.status().code != Code::kDriverLost) return scope.status();
  for (bool released = true; released;) VKV_RETURN_IF_ERROR(ReleaseOneFree(released, keep));
  return Ok();
}

Status PagePool::Close() {
  if (!driver_) return Ok();
  VKV_RETURN_IF_ERROR(Trim(0));
  std::lock_guard lock(mutex_);
  if (created_ > quarantined_)
    return Fail(Code::kInternal, "PagePool::Close", static_cast<int64_t>(created_ - quarantined_));
  driver_.reset();
  return Ok();
}

}  // namespace vkv
