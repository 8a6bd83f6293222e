// HostBacking: page bytes in one memory file, shown at real addresses of this process with mmap.
//
// A reservation is a PROT_NONE mapping; showing replaces part of it by a shared mapping of the file, hiding
// puts PROT_NONE back. A dropped page is punched out of the file, so that its memory goes back to the system at
// once. The destructor frees everything. Threads: guarded by its owner's lock.
#ifndef VKV_MOCK_HOST_BACKING_H_
#define VKV_MOCK_HOST_BACKING_H_

#include <map>
#include <memory>
#include <vector>

#include "mock/backing.h"

namespace vkv::mock {

class HostBacking final : public Backing {
 public:
  static Status Open(std::unique_ptr<Backing>& backing);
  ~HostBacking() override;
  HostBacking(const HostBacking&) = delete;
  HostBacking& operator=(const HostBacking&) = delete;

  bool Reserve(uint64_t bytes, uint64_t alignment_bytes, uint64_t& address) override;
  void Free(uint64_t address, uint64_t bytes) override;
  bool CreatePage(uint64_t bytes, uint64_t& offset) override;
  void DropPage(uint64_t bytes, uint64_t offset) override;
  bool Show(uint64_t address, uint64_t bytes, uint64_t offset, CUmemAccess_flags access) override;
  void Hide(uint64_t address, uint64_t bytes) override;
  void Copy(uint64_t to, uint64_t from, uint64_t bytes) override;
  void Fill(uint64_t to, uint8_t value, uint64_t bytes) override;
  uint64_t ShowAgain(uint64_t address, uint64_t bytes) override;
  void HideAgain(uint64_t address, uint64_t bytes) override;
  bool has_memory() const override { return true; }
  uint64_t mapping_limit() const override { return kMappingLimit; }
  uint64_t ResidentBytes(uint64_t created_bytes) const override;

 private:
  // Less than half of what Linux allows a process by default (vm.max_map_count): near the limit even malloc
  // fails, and a page between unmapped neighbours takes two.
  static constexpr uint64_t kMappingLimit = 15'000;

  explicit HostBacking(int file) : file_(file) {}

  const int file_;
  uint64_t file_bytes_ = 0;
  std::map<uint64_t, std::vector<uint64_t>> free_offsets_;  // by page bytes: places of dropped pages
  std::map<uint64_t, uint64_t> reservations_;               // address -> bytes
  std::map<uint64_t, uint64_t> shown_again_;                // address -> bytes
};

}  // namespace vkv::mock

#endif  // VKV_MOCK_HOST_BACKING_H_
