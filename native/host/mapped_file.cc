#include "host/mapped_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "host/bus_errors.h"
#include "host/system_calls.h"

namespace vkv::host {
namespace {

// A file system's clock may tick this seldom (FAT), and a file server's be so far from ours.
constexpr time_t kQuietSeconds = 2;

bool IsSame(const timespec& a, const timespec& b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

bool IsInMemory(int file) {
  struct statfs system {};
  if (fstatfs(file, &system) != 0) return false;
  const auto type = static_cast<uint32_t>(system.f_type);
  return type == TMPFS_MAGIC || type == RAMFS_MAGIC || type == HUGETLBFS_MAGIC;
}

// Whether it is open for writing anywhere on this machine, or mapped so; false where the system does not say. The
// system refuses a read lease then. A process that opens the file for writing while the lease lasts waits until it
// ends, and this process gets SIGURG, which does nothing by default, instead of SIGIO, which would end it.
bool HasWriter(int file) {
  (void)fcntl(file, F_SETSIG, SIGURG);
  const bool has_writer = fcntl(file, F_SETLEASE, F_RDLCK) != 0 && errno == EAGAIN;
  (void)fcntl(file, F_SETLEASE, F_UNLCK);
  (void)fcntl(file, F_SETSIG, 0);
  return has_writer;
}

// 0, or the errno of why a later change of the file might not be noticed. `written` was read before.
int WhyUnnoticed(int file, const timespec& written) {
  timespec now{};
  // The wall clock, since files' times are of it.
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return errno;
  if (written.tv_sec > now.tv_sec) return ERANGE;
  if (written.tv_sec + kQuietSeconds >= now.tv_sec) return EBUSY;
  if (IsInMemory(file)) return EOPNOTSUPP;
  return HasWriter(file) ? ETXTBSY : 0;
}

}  // namespace

Status MappedFile::Open(int descriptor, uint64_t bytes, std::unique_ptr<MappedFile>& file) {
  std::unique_ptr<MappedFile> opened(new MappedFile);
  opened->file_ = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (opened->file_ < 0) return SystemError(Code::kDriverCallFailed, "fcntl", errno);
  struct stat status {};
  if (fstat(opened->file_, &status) != 0) return SystemError(Code::kDriverCallFailed, "fstat", errno);
  if (!S_ISREG(status.st_mode) || bytes == 0 || static_cast<uint64_t>(status.st_size) != bytes)
    return SystemError(Code::kDriverCallFailed, "fstat", EINVAL, 0, bytes);
  if (const int error = WhyUnnoticed(opened->file_, status.st_mtim))
    return SystemError(Code::kDriverCallFailed, "MappedFile", error);
  void* const data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, opened->file_, 0);
  if (data == MAP_FAILED) return SystemError(Code::kDriverCallFailed, "mmap", errno, 0, bytes);
  opened->data_ = static_cast<const uint8_t*>(data);
  opened->bytes_ = bytes;
  opened->written_ = status.st_mtim;
  const auto begin = reinterpret_cast<uint64_t>(data);
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  VKV_RETURN_IF_ERROR(AddMappedRange(begin, (begin + bytes + page - 1) / page * page, opened->range_));
  file = std::move(opened);
  return Ok();
}

MappedFile::~MappedFile() {
  if (range_ != nullptr) RemoveMappedRange(range_);
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), bytes_);
  if (file_ >= 0) close(file_);
}

bool MappedFile::IsIntact() const {
  struct stat status {};
  if (range_->has_lost_pages.load() || fstat(file_, &status) != 0) return false;
  return static_cast<uint64_t>(status.st_size) == bytes_ && IsSame(status.st_mtim, written_);
}

}  // namespace vkv::host
