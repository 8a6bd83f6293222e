// PagePool: the physical pages, their budget, and who refers to them. Several caches may share one.
//
// Every created page is exactly one of free (in the free list, kept for reuse), in use (referred to by one or more
// slots) or quarantined (a failed undo left it mapped somewhere unknown; never used again): free + in use + quarantined
// = created. Part of what is available can be promised to a slot, so that a prompt admitted in chunks always finds its
// pages. Threads: any; the mutex guards the page table and is not held across driver calls.
#ifndef VKV_PAGE_POOL_H_
#define VKV_PAGE_POOL_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "driver.h"
#include "status.h"

namespace vkv {

using PageId = uint32_t;
inline constexpr PageId kNoPage = UINT32_MAX;

using Tenant = uint64_t;
inline constexpr Tenant kCleanTenant = 0;             // the page holds zeros
inline constexpr Tenant kUnknownTenant = UINT64_MAX;  // the page holds what another process, or a cache that does not
                                                      // scrub, left

struct PoolCounts {
  uint64_t budget = 0;
  uint64_t created = 0;
  uint64_t free = 0;
  uint64_t in_use = 0;
  uint64_t promised = 0;
  uint64_t quarantined = 0;
};

class PagePool {
 public:
  static Status Open(std::shared_ptr<Driver> driver, uint64_t page_bytes, uint64_t budget_bytes,
                     std::shared_ptr<PagePool>& pool);
  ~PagePool();  // releases what is left
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  Driver& driver() { return *driver_; }
  uint64_t page_bytes() const { return page_bytes_; }
  PoolCounts counts() const;

  // Pages that can still be taken without breaking a promise. Below zero when a lowered budget is exceeded: so many
  // must come back before one can be taken.
  int64_t available() const;
  // Sets pages aside: kOutOfPages {pages, available} when there are not so many.
  Status Promise(uint64_t pages);
  void Unpromise(uint64_t pages);
  // Puts back a promise that Take has drawn from, before its pages are given back: it cannot be refused.
  void Repromise(uint64_t pages);

  // Takes near.size() pages, each with one reference, free ones first; creates the rest, page k close to near[k]. The
  // first `promised` of them are drawn from the promise, and are there even if the budget was lowered since. All or
  // nothing: kOutOfPages, or the driver's refusal to create, leaves every count as it was.
  Status Take(uint64_t promised, std::span<const uint64_t> near, std::span<PageId> pages);
  // One more reference each, to pages in use; passes over kNoPage.
  void Share(std::span<const PageId> pages);
  uint32_t references(PageId page) const;
  bool is_quarantined(PageId page) const;
  // Whether it has more references than one, places it is stranded at not counted: nobody reads those.
  bool is_shared(PageId page) const;
  // Drops one reference each; a page without any is free.
  void Give(std::span<const PageId> pages);
  // Takes a page in use out of service with one more reference: it stays where it is until Restore has ended that, as
  // often as it was put there.
  void Quarantine(PageId page);
  void Restore(PageId page);
  // Driver handles of pages in use, in the same order.
  void Handles(std::span<const PageId> pages, std::span<PageHandle> handles) const;

  // Said by a cache that scrubs, before it names a tenant: from here on pages of tenants may come to any cache.
  void BeginTenants() { has_tenants_.store(true, std::memory_order_relaxed); }
  // Whether any cache of this pool ever scrubbed.
  bool has_tenants() const { return has_tenants_.load(std::memory_order_relaxed); }
  Tenant tenant(PageId page) const;
  void set_tenant(std::span<const PageId> pages, Tenant tenant);  // passes over kNoPage

  // Lowering it below what is created releases free pages; what is in use stays, and only promised pages are created
  // until enough is given back. When the driver refuses to release a page the budget is as before.
  Status SetBudget(uint64_t budget_bytes);
  // Releases free pages to the system until at most `keep` are left.
  Status Trim(uint64_t keep);
  // Releases all, and lets go of the driver. kInternal when pages are still in use. Retryable; idempotent.
  Status Close();

 private:
  struct Page {
    PageHandle handle = 0;
    uint32_t references = 0;
    Tenant tenant = kUnknownTenant;
    uint32_t quarantines = 0;  // places it is stranded at
  };

  PagePool(std::shared_ptr<Driver> driver, uint64_t page_bytes, uint64_t budget_pages)
      : driver_(std::move(driver)), page_bytes_(page_bytes), budget_(budget_pages) {}

  int64_t AvailableLocked() const;
  PageId AddLocked(PageHandle handle);
  Status ReleaseOneFree(bool& released, uint64_t keep);

  std::shared_ptr<Driver> driver_;  // null once closed
  const uint64_t page_bytes_;
  std::atomic<bool> has_tenants_{false};

  mutable std::mutex mutex_;  // guards all below
  uint64_t budget_;
  uint64_t promised_ = 0;
  uint64_t quarantined_ = 0;
  uint64_t created_ = 0;            // includes pages being created
  std::deque<Page> pages_;          // by PageId
  std::vector<PageId> free_;        // last given, first taken
  std::vector<PageId> unused_ids_;  // entries of pages_ whose page was released
};

}  // namespace vkv

#endif  // VKV_PAGE_POOL_H_
