// PagePool: the physical pages, their budget, and the references to them. Several caches may share one.
//
// Every created page is exactly one of free (in the free list, kept for reuse), in use (referred to by one or more
// slots) or quarantined (a failed undo left it mapped somewhere unknown; never used again): free + in use + quarantined
// = created. A page that is being created ahead of need is none of them yet, but to be had as if it were free. Part of
// what is available can be earmarked for a slot, so that a prompt admitted in chunks always finds its pages. Threads:
// any; the mutex guards the page table and is not held across driver calls. A cache that refers to a page reads
// its handle without the mutex; the references too, on the one thread on which they come and go.
#ifndef VKV_PAGE_POOL_H_
#define VKV_PAGE_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "driver.h"
#include "growing_table.h"
#include "status.h"

namespace vkv {

using PageId = uint32_t;

using Tenant = uint64_t;
inline constexpr Tenant kCleanTenant = 0;             // the page holds zeros
inline constexpr Tenant kUnknownTenant = UINT64_MAX;  // the page holds what another process, or a cache that does not
                                                      // scrub, left

struct PoolCounts {
  uint64_t budget = 0;
  uint64_t created = 0;
  uint64_t free = 0;
  uint64_t in_use = 0;
  uint64_t earmarked = 0;
  uint64_t quarantined = 0;
};

struct PoolOptions {
  uint64_t page_bytes = 0;
  uint64_t budget_bytes = 0;
  uint64_t headroom_bytes = 0;  // device memory that new pages leave free for uses outside the pool
  uint64_t ready_pages = 0;     // free pages that CreateAhead aims for
};

class PagePool {
 public:
  static Status Open(std::shared_ptr<Driver> driver, const PoolOptions& options, std::shared_ptr<PagePool>& pool);
  ~PagePool();  // releases what is left
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  Driver& driver() { return *driver_; }
  uint64_t page_bytes() const { return page_bytes_; }
  PoolCounts counts() const;

  // Pages that can still be taken beside the earmarked ones. Below zero when a lowered budget is exceeded: so many
  // must come back before one can be taken.
  int64_t available() const;
  // Sets pages aside: kOutOfPages {pages, available} when there are not so many.
  Status Earmark(uint64_t pages);
  void DropEarmark(uint64_t pages);
  // Puts back an earmark that Take has drawn from, before its pages are given back: it cannot be refused.
  void RestoreEarmark(uint64_t pages);

  // Takes near.size() pages, each with one reference, free ones first; creates the rest, page k close to near[k]. The
  // first `earmarked` of them are drawn from the earmark, and are there even if the budget was lowered since. All or
  // nothing: kOutOfPages, kOutOfDeviceMemory where it would cut into the headroom, or the driver's refusal to create,
  // leaves every count as it was.
  Status Take(uint64_t earmarked, std::span<const uint64_t> near, std::span<PageId> pages);
  // Creates one free page where fewer than ready_pages are free and the budget allows it, so that a later Take need
  // not. False: enough are free, or budget or device memory allow no more.
  Status CreateAhead(bool& is_created);
  uint64_t ready_pages() const { return ready_pages_; }
  // One more reference each, to pages in use.
  void Share(std::span<const PageId> pages);
  uint32_t references(PageId page) const { return pages_[page].references; }
  bool is_quarantined(PageId page) const;
  // Whether it has more than one reference, without those of places where it is stranded, which are never read.
  bool is_shared(PageId page) const;
  // Drops one reference each; a page without any is free.
  void Give(std::span<const PageId> pages);
  // Puts a page in use into quarantine with one more reference. It stays there until Restore was called as often as
  // Quarantine.
  void Quarantine(PageId page);
  void Restore(PageId page);
  // Driver handles of pages to which the caller refers, in the same order. Takes no lock.
  void Handles(std::span<const PageId> pages, std::span<PageHandle> handles) const;

  // Called by a cache that scrubs, before it names a tenant: from here on pages of tenants may come to any cache.
  void BeginTenants() { has_tenants_.store(true, std::memory_order_relaxed); }
  // Whether any cache of this pool ever scrubbed.
  bool has_tenants() const { return has_tenants_.load(std::memory_order_relaxed); }
  Tenant tenant(PageId page) const;
  void set_tenant(std::span<const PageId> pages, Tenant tenant);

  // Lowering it below what is created releases free pages; what is in use stays, and only earmarked pages are created
  // until enough is given back. When the driver refuses to release a page the budget is as before.
  Status SetBudget(uint64_t budget_bytes);
  // Releases free pages to the system until at most `keep` are left.
  Status Trim(uint64_t keep);
  // Releases all pages and the reference to the driver. kInternal when pages are still in use. Retryable; idempotent.
  Status Close();

 private:
  struct Page {
    PageHandle handle = 0;
    uint32_t references = 0;
    Tenant tenant = kUnknownTenant;
    uint32_t quarantines = 0;  // places it is stranded at
  };

  PagePool(std::shared_ptr<Driver> driver, const PoolOptions& options)
      : driver_(std::move(driver)),
        page_bytes_(options.page_bytes),
        headroom_bytes_(options.headroom_bytes),
        ready_pages_(options.ready_pages),
        budget_(options.budget_bytes / options.page_bytes) {}

  int64_t AvailableLocked() const;
  // kOutOfDeviceMemory when that many new pages would leave less free than the headroom. Inside a DriverScope.
  Status CheckHeadroom(uint64_t pages);
  // Waits until no page is being created ahead; none is begun while the lock is held.
  void AwaitNoneAhead(std::unique_lock<std::mutex>& lock);
  PageId AddLocked(PageHandle handle);
  Status ReleaseOneFree(bool& released, uint64_t keep);

  std::shared_ptr<Driver> driver_;  // null once closed
  const uint64_t page_bytes_;
  const uint64_t headroom_bytes_;
  const uint64_t ready_pages_;
  std::atomic<bool> has_tenants_{false};

  mutable std::mutex mutex_;  // guards all below
  uint64_t budget_;
  uint64_t earmarked_ = 0;
  uint64_t quarantined_ = 0;
  uint64_t created_ = 0;         // includes pages being created
  uint64_t creating_ahead_ = 0;  // of those, what will be free
  uint64_t waiting_ = 0;         // calls that wait until none is being created ahead
  std::condition_variable none_ahead_;
  GrowingTable<Page> pages_;        // by PageId
  std::vector<PageId> free_;        // last given, first taken
  std::vector<PageId> unused_ids_;  // entries of pages_ whose page was released
};

}  // namespace vkv

#endif  // VKV_PAGE_POOL_H_
