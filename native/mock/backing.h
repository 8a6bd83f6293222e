// Backing: provides the simulated device's addresses and page bytes: from the host's memory, or none.
//
// It checks no rules; the address book and the page store have done so. A file offset names the place of a page's
// bytes. Threads: guarded by its owner's lock.
#ifndef VKV_MOCK_BACKING_H_
#define VKV_MOCK_BACKING_H_

#include <cstdint>
#include <memory>

#include "mock/cuda_names.h"
#include "mock/options.h"
#include "status.h"

namespace vkv::mock {

class Backing {
 public:
  virtual ~Backing() = default;

  // Addresses that nothing else uses, at a multiple of `alignment_bytes`. False when there are none.
  virtual bool Reserve(uint64_t bytes, uint64_t alignment_bytes, uint64_t& address) = 0;
  virtual void Free(uint64_t address, uint64_t bytes) = 0;

  // A place for a page's bytes. False when there is none.
  virtual bool CreatePage(uint64_t bytes, uint64_t& offset) = 0;
  // Gives the bytes back to the system. Nothing is mapped there any more.
  virtual void DropPage(uint64_t bytes, uint64_t offset) = 0;

  // Makes [address, address + bytes) show the file from `offset` on. False when the system refuses.
  virtual bool Show(uint64_t address, uint64_t bytes, uint64_t offset, CUmemAccess_flags access) = 0;
  virtual void Hide(uint64_t address, uint64_t bytes) = 0;

  // On shown addresses.
  virtual void Copy(uint64_t to, uint64_t from, uint64_t bytes) = 0;
  virtual void Fill(uint64_t to, uint8_t value, uint64_t bytes) = 0;

  // Shows the CPU's own memory at other addresses too; the same ones where the system refuses.
  virtual uint64_t ShowAgain(uint64_t address, uint64_t bytes) = 0;
  virtual void HideAgain(uint64_t address, uint64_t bytes) = 0;  // pre: what ShowAgain has returned

  virtual bool has_memory() const = 0;
  virtual uint64_t mapping_limit() const = 0;  // how many pages may be mapped at once
  virtual uint64_t ResidentBytes(uint64_t created_bytes) const = 0;
};

// kDriverUnavailable (kMemoryRefused) when the system refuses a memory file.
Status OpenBacking(const MockOptions& options, std::unique_ptr<Backing>& backing);

}  // namespace vkv::mock

#endif  // VKV_MOCK_BACKING_H_
