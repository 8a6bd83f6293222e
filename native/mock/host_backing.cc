#include "mock/host_backing.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "driver.h"

namespace vkv::mock {
namespace {

constexpr uint64_t kStatBlockBytes = 512;

void* ToPointer(uint64_t address) { return reinterpret_cast<void*>(address); }

int ToProtection(CUmemAccess_flags access) {
  if (access == CU_MEM_ACCESS_FLAGS_PROT_NONE) return PROT_NONE;
  if (access == CU_MEM_ACCESS_FLAGS_PROT_READ) return PROT_READ;
  return PROT_READ | PROT_WRITE;
}

}  // namespace

Status HostBacking::Open(std::unique_ptr<Backing>& backing) {
  const int file = memfd_create("virtual-kv-mock", MFD_CLOEXEC);
  if (file < 0) {
    constexpr auto kWhat = static_cast<int64_t>(Unavailable::kMemoryRefused);
    return {Code::kDriverUnavailable, "memfd_create", errno, "", kWhat, 0};
  }
  backing.reset(new HostBacking(file));
  return Ok();
}

HostBacking::~HostBacking() {
  for (const auto& [address, bytes] : reservations_) munmap(ToPointer(address), bytes);
  for (const auto& [address, bytes] : shown_again_) munmap(ToPointer(address), bytes);
  close(file_);
}

bool HostBacking::Reserve(uint64_t bytes, uint64_t alignment_bytes, uint64_t& address) {
  // The system aligns to its own pages only: reserve more and free the rest at both ends.
  const uint64_t slack_bytes = alignment_bytes;
  void* taken = mmap(nullptr, bytes + slack_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (taken == MAP_FAILED) return false;
  const uint64_t begin = reinterpret_cast<uint64_t>(taken);
  address = (begin + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
  if (address != begin) munmap(taken, address - begin);
  const uint64_t behind_bytes = begin + slack_bytes - address;
  if (behind_bytes != 0) munmap(ToPointer(address + bytes), behind_bytes);
  reservations_[address] = bytes;
  return true;
}

void HostBacking::Free(uint64_t address, uint64_t bytes) {
  munmap(ToPointer(address), bytes);
  reservations_.erase(address);
}

bool HostBacking::CreatePage(uint64_t bytes, uint64_t& offset) {
  std::vector<uint64_t>& free = free_offsets_[bytes];
  if (!free.empty()) {
    offset = free.back();
    free.pop_back();
    return true;
  }
  if (ftruncate(file_, static_cast<off_t>(file_bytes_ + bytes)) != 0) return false;
  offset = file_bytes_;
  file_bytes_ += bytes;
  return true;
}

void HostBacking::DropPage(uint64_t bytes, uint64_t offset) {
  (void)fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes));
  free_offsets_[bytes].push_back(offset);
}

bool HostBacking::Show(uint64_t address, uint64_t bytes, uint64_t offset, CUmemAccess_flags access) {
  return mmap(ToPointer(address), bytes, ToProtection(access), MAP_SHARED | MAP_FIXED, file_,
              static_cast<off_t>(offset)) != MAP_FAILED;
}

void HostBacking::Hide(uint64_t address, uint64_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  void* hidden = mmap(ToPointer(address), bytes, PROT_NONE, flags, -1, 0);
  // At the kernel's limit of mappings it fails; the old pages must not stay accessible even then.
  if (hidden == MAP_FAILED) (void)mprotect(ToPointer(address), bytes, PROT_NONE);
}

void HostBacking::Copy(uint64_t to, uint64_t from, uint64_t bytes) {
  if (bytes != 0) std::memmove(ToPointer(to), ToPointer(from), bytes);  // no bytes may have no address
}

void HostBacking::Fill(uint64_t to, uint8_t value, uint64_t bytes) {
  if (bytes != 0) std::memset(ToPointer(to), value, bytes);
}

uint64_t HostBacking::ShowAgain(uint64_t address, uint64_t bytes) {
  // From no bytes: a second mapping of what is shared. Private memory has none, and is seen where it is.
  void* const shown = mremap(ToPointer(address), /*old_size=*/0, bytes, MREMAP_MAYMOVE);
  if (shown == MAP_FAILED) return address;
  const auto again = reinterpret_cast<uint64_t>(shown);
  shown_again_[again] = bytes;
  return again;
}

void HostBacking::HideAgain(uint64_t address, uint64_t bytes) {
  if (shown_again_.erase(address) != 0) munmap(ToPointer(address), bytes);
}

uint64_t HostBacking::ResidentBytes(uint64_t /*created_bytes*/) const {
  struct stat file = {};
  return fstat(file_, &file) == 0 ? static_cast<uint64_t>(file.st_blocks) * kStatBlockBytes : 0;
}

}  // namespace vkv::mock
