// PinnedArena: a host driver's page file mapped a second time, linearly, and registered with a device's driver where
// the device writes, so that its copies go straight to a page while the page is mapped elsewhere too.
//
// The addresses of slots are never registered: they are mapped and unmapped. The linear mapping is made in blocks of
// the file, when first needed, and never changes; pages are registered when the device first writes to them, in runs
// that follow each other in the file, and until one of them is given back to the system. Where registering is refused
// (a limit on locked memory), copies go to the slot's address and wait. Many short runs go in one operation of the
// device, where it has a RowScatter. Threads: BeforeRelease is called on any, and waits while copies are queued, since
// a kernel must not find its pages unregistered; all else on the owner's, inside DriverScopes of both drivers. No lock
// is held across a driver call.
#ifndef VKV_PINNED_ARENA_H_
#define VKV_PINNED_ARENA_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "driver.h"
#include "host/driver_host.h"
#include "host/page_listener.h"
#include "row_scatter.h"

namespace vkv {

class PinnedArena final : public host::PageListener {
 public:
  // Bytes of a packed source, and the slot's address where they go.
  struct Run {
    uint64_t to = 0;
    uint64_t from = 0;  // byte of the source
    uint64_t bytes = 0;
  };
  struct Counts {
    uint64_t registered_bytes = 0;  // now
    uint64_t pageable_bytes = 0;    // found without a registration, since it was opened
  };

  // `scatter` may be null.
  static std::shared_ptr<PinnedArena> Open(std::shared_ptr<Driver> device, std::shared_ptr<DriverHost> host,
                                           std::unique_ptr<RowScatter> scatter);
  ~PinnedArena() override;  // closes; what cannot be unregistered stays mapped until the process ends
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;

  // Copies runs of the device's memory from `source` on into pages of `page_bytes` of the host driver, queued on
  // `stream`: the only stream that copies here until the next call of Close. After a failure some of it may be queued.
  Status Copy(uint64_t source, std::span<const Run> runs, uint64_t page_bytes, Stream stream);
  Counts counts() const;
  Status BeforeRelease(uint64_t offset, uint64_t bytes) override;
  // Waits for queued copies, unregisters all and unmaps it. Idempotent, retryable.
  Status Close();

 private:
  // Where a copy goes.
  struct Place {
    uint64_t address = 0;
    uint64_t bytes = 0;  // from there on
    bool is_registered = false;
    uint64_t on_device = 0;  // where the device's kernels see it; 0: they do not
  };
  struct Range {
    uint64_t end = 0;        // in the file
    uint64_t on_device = 0;  // as of a Place
  };
  // By offset in the file.
  using Ranges = std::map<uint64_t, Range>;

  PinnedArena(std::shared_ptr<Driver> device, std::shared_ptr<DriverHost> host, std::unique_ptr<RowScatter> scatter)
      : device_(std::move(device)), host_(std::move(host)), scatter_(std::move(scatter)) {}

  Status CopyEach(uint64_t source, std::span<const Run> runs, uint64_t page_bytes, Stream stream);
  // The place of the first of these bytes.
  Status Find(uint64_t address, uint64_t bytes, uint64_t page_bytes, Place& place);
  // Registers the pages of [from, to) of the file, which lie in one block. False: it was refused.
  Status Register(uint64_t from, uint64_t to, bool& is_registered, uint64_t& on_device);
  Status BlockAddress(uint64_t offset, uint64_t& address);
  Status Unregister(uint64_t from, uint64_t to);
  // The first registered range, by offset, that ends behind `offset`; pre: locked.
  Ranges::iterator FirstBehind(uint64_t offset);

  const std::shared_ptr<Driver> device_;
  const std::shared_ptr<DriverHost> host_;
  const std::unique_ptr<RowScatter> scatter_;
  std::vector<PlacedRows> short_;  // of the copy at hand: runs that go in one operation; the owner's thread's

  mutable std::mutex mutex_;             // guards all below
  std::condition_variable queued_;       // is_queueing_ is false
  std::map<uint64_t, uint64_t> blocks_;  // offset of a block in the file -> address
  Ranges registered_;
  std::optional<Stream> stream_;  // has copies that were not waited for, besides those that are being queued
  uint64_t copies_ = 0;           // calls of Copy that have queued what they were to
  bool is_queueing_ = false;      // copies to places that were found: nothing is unregistered
  bool is_refused_ = false;       // since then nothing was given back
  Counts counts_;
};

}  // namespace vkv

#endif  // VKV_PINNED_ARENA_H_
