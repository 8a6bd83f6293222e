#include "host/system_calls.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace vkv::host {
namespace {

constexpr int kNoMemory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// As `strerrorname_np` does, which the C library has since 2.32 only; of the errors that calls here give.
const char* ErrorName(int error) {
  switch (error) {
    case EACCES: return "EACCES";
    case EAGAIN: return "EAGAIN";
    case EBADF: return "EBADF";
    case EBUSY: return "EBUSY";
    case EDQUOT: return "EDQUOT";
    case EEXIST: return "EEXIST";
    case EFBIG: return "EFBIG";
    case EINTR: return "EINTR";
    case EINVAL: return "EINVAL";
    case EIO: return "EIO";
    case EISDIR: return "EISDIR";
    case ELOOP: return "ELOOP";
    case EMFILE: return "EMFILE";
    case ENAMETOOLONG: return "ENAMETOOLONG";
    case ENFILE: return "ENFILE";
    case ENODEV: return "ENODEV";
    case ENOENT: return "ENOENT";
    case ENOMEM: return "ENOMEM";
    case ENOSPC: return "ENOSPC";
    case ENOSYS: return "ENOSYS";
    case ENOTDIR: return "ENOTDIR";
    case ENOTEMPTY: return "ENOTEMPTY";
    case ENXIO: return "ENXIO";
    case EOPNOTSUPP: return "EOPNOTSUPP";
    case EPERM: return "EPERM";
    case EROFS: return "EROFS";
    case ESTALE: return "ESTALE";
    case ETIMEDOUT: return "ETIMEDOUT";
    default: return "";
  }
}

void* At(uint64_t address) { return reinterpret_cast<void*>(address); }

// Blocks SIGXFSZ on this thread while it lives, and discards one that was raised meanwhile.
class FileSizeSignalBlock {
 public:
  FileSizeSignalBlock() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    was_pending_ = IsPending();
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~FileSizeSignalBlock() {
    const timespec now = {};
    if (!was_pending_ && IsPending()) sigtimedwait(&signal_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  static bool IsPending() {
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, SIGXFSZ) == 1;
  }

  sigset_t signal_;
  sigset_t before_;
  bool was_pending_;
};

}  // namespace

bool SystemCallFromName(std::string_view name, SystemCall& kind) {
  constexpr std::string_view kNames[kSystemCallKinds] = {"ftruncate",  "mmap-reserve", "mmap-map",
                                                         "mmap-unmap", "munmap",       "fallocate"};
  for (size_t k = 0; k < kSystemCallKinds; ++k) {
    if (name != kNames[k]) continue;
    kind = static_cast<SystemCall>(k);
    return true;
  }
  return false;
}

Status SystemError(Code code, const char* call, int error, uint64_t what, uint64_t how_many) {
  return {code, call, error, ErrorName(error), static_cast<int64_t>(what), static_cast<int64_t>(how_many), 0};
}

void SystemCalls::FailNext(SystemCall kind, uint64_t nth, int error) {
  Script& script = scripts_[static_cast<size_t>(kind)];
  script.error.store(error, std::memory_order_relaxed);
  script.calls_left.store(nth, std::memory_order_release);
}

int SystemCalls::Scripted(SystemCall kind) {
  Script& script = scripts_[static_cast<size_t>(kind)];
  uint64_t left = script.calls_left.load(std::memory_order_acquire);
  while (left != 0 && !script.calls_left.compare_exchange_weak(left, left - 1)) {
  }
  return left == 1 ? script.error.load(std::memory_order_relaxed) : 0;
}

int SystemCalls::Truncate(int file, uint64_t bytes) {
  if (const int error = Scripted(SystemCall::kFtruncate)) return error;
  FileSizeSignalBlock block;
  return ftruncate(file, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

int SystemCalls::Reserve(uint64_t bytes, uint64_t& address) {
  if (const int error = Scripted(SystemCall::kMmapReserve)) return error;
  void* const start = mmap(nullptr, bytes, PROT_NONE, kNoMemory, -1, 0);
  if (start == MAP_FAILED) return errno;
  address = reinterpret_cast<uint64_t>(start);
  return 0;
}

int SystemCalls::Map(uint64_t address, uint64_t bytes, int file, uint64_t offset, bool populate) {
  if (const int error = Scripted(SystemCall::kMmapMap)) return error;
  const int flags = MAP_SHARED | MAP_FIXED | (populate ? MAP_POPULATE : 0);
  const void* const start = mmap(At(address), bytes, PROT_READ | PROT_WRITE, flags, file, static_cast<off_t>(offset));
  return start == MAP_FAILED ? errno : 0;
}

int SystemCalls::Unmap(uint64_t address, uint64_t bytes) {
  if (const int error = Scripted(SystemCall::kMmapUnmap)) return error;
  const void* const start = mmap(At(address), bytes, PROT_READ, kNoMemory | MAP_FIXED, -1, 0);
  return start == MAP_FAILED ? errno : 0;
}

int SystemCalls::Free(uint64_t address, uint64_t bytes) {
  if (const int error = Scripted(SystemCall::kMunmap)) return error;
  return munmap(At(address), bytes) == 0 ? 0 : errno;
}

int SystemCalls::Commit(int file, uint64_t offset, uint64_t bytes) {
  if (const int error = Scripted(SystemCall::kFallocate)) return error;
  return fallocate(file, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

int SystemCalls::Punch(int file, uint64_t offset, uint64_t bytes) {
  if (const int error = Scripted(SystemCall::kFallocate)) return error;
  constexpr int kMode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  return fallocate(file, kMode, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

}  // namespace vkv::host
