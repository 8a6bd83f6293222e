// PinnedArena: a host driver's page file mapped a second time, linearly, and registered with a device's driver where
// the device writes, so that its copies go straight to a page while the page is mapped elsewhere too.
//
// The addresses of slots are never registered: they are mapped and unmapped. The linear mapping is made in blocks of
// the file, when first needed, and never changes; pages are registered when the device first writes to them, in runs
// that follow each other in the file, and until one of them is given back to the system. Where registering is refused
// (a limit on locked memory), copies go to the slot's address and wait. Threads: BeforeRelease is called on any; all
// else on the owner's, inside DriverScopes of both drivers. No lock is held across a driver call.
#ifndef VKV_PINNED_ARENA_H_
#define VKV_PINNED_ARENA_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "driver.h"
#include "host/driver_host.h"
#include "host/page_listener.h"

namespace vkv {

class PinnedArena final : public host::PageListener {
 public:
  // Where a copy goes.
  struct Place {
    uint64_t address = 0;
    uint64_t bytes = 0;  // from there on
    bool is_registered = false;
  };
  struct Counts {
    uint64_t registered_bytes = 0;  // now
    uint64_t pageable_bytes = 0;    // found without a registration, since it was opened
  };

  static std::shared_ptr<PinnedArena> Open(std::shared_ptr<Driver> device, std::shared_ptr<DriverHost> host);
  ~PinnedArena() override;  // closes; what cannot be unregistered stays mapped until the process ends
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;

  // The place of the first of these bytes, mapped in pages of `page_bytes` of the host driver, for a copy that is about
  // to be queued on `stream`: the only stream that copies here until the next call of Close.
  Status Find(uint64_t address, uint64_t bytes, uint64_t page_bytes, Stream stream, Place& place);
  Counts counts() const;
  Status BeforeRelease(uint64_t offset, uint64_t bytes) override;
  // Waits for queued copies, unregisters all and unmaps it. Idempotent, retryable.
  Status Close();

 private:
  PinnedArena(std::shared_ptr<Driver> device, std::shared_ptr<DriverHost> host)
      : device_(std::move(device)), host_(std::move(host)) {}

  // Registers the pages of [from, to) of the file, which lie in one block. False: it was refused.
  Status Register(uint64_t from, uint64_t to, bool& is_registered);
  Status BlockAddress(uint64_t offset, uint64_t& address);
  Status Unregister(uint64_t from, uint64_t to);
  // The first registered range, by offset, that ends behind `offset`; pre: locked.
  std::map<uint64_t, uint64_t>::iterator FirstBehind(uint64_t offset);

  const std::shared_ptr<Driver> device_;
  const std::shared_ptr<DriverHost> host_;

  mutable std::mutex mutex_;                 // guards all below
  std::map<uint64_t, uint64_t> blocks_;      // offset of a block in the file -> address
  std::map<uint64_t, uint64_t> registered_;  // offset -> end offset
  std::optional<Stream> stream_;             // has copies that were not waited for
  bool is_refused_ = false;                  // since then nothing was given back
  Counts counts_;
};

}  // namespace vkv

#endif  // VKV_PINNED_ARENA_H_
