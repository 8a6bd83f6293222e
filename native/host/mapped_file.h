// MappedFile: the bytes of a file in memory, read-only, shared with every process that has them: the page cache's own.
//
// A file may be cut short or written to while it is mapped. Reading a page that is gone would end the process
// (SIGBUS): no check before the read can rule that out, since another process cuts when it likes, and a lease keeps it
// from doing so on few file systems only. So the first mapping installs a handler of that signal, as the JVM and
// systemd's journal do: where a page of a mapped file is gone it puts zeros in its place and notes the loss; any other
// SIGBUS goes to the handler that was there before. It stays until the process ends, and the addon's code with it.
// What was computed meanwhile is wrong, so a reader asks `IsIntact` behind its last read and before it believes a
// result.
//
// That goes by the time of the last write, so only a file is mapped of which the kernel moves that time with every
// later change: one that was written to just now has a time that the next write may share, a page that a writer has
// mapped and written to takes more writes in silence, and file systems in memory do not tell of writes through a
// mapping at all. Only a file's owner can ask the system for its writers: a file of another user is mapped, and that
// user answers for writes to it. IsIntact also misses a file time or a clock that is set back, and a write of another
// client of a file server, which reports it late.
//
// Threads: reading and IsIntact any; opening and closing any, and nothing reads a file that is being closed.
#ifndef VKV_HOST_MAPPED_FILE_H_
#define VKV_HOST_MAPPED_FILE_H_

#include <sys/types.h>
#include <time.h>

#include <cstdint>
#include <memory>

#include "status.h"

namespace vkv::host {

struct MappedRange;

class MappedFile {
 public:
  // Maps a regular file of `bytes` bytes, more than 0, through a copy of `descriptor`, which is open for reading only.
  // Fails with kDriverCallFailed and an errno where the system refuses, and where a later change might not be noticed:
  // EBUSY, written to within the last 2 to 3 seconds; ERANGE, its time lies ahead; ETXTBSY, open for writing somewhere;
  // EOPNOTSUPP, on a file system in memory. EINVAL: it has another size.
  static Status Open(int descriptor, uint64_t bytes, std::unique_ptr<MappedFile>& file);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const uint8_t* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  // Whether everything read so far is what the file held when it was opened: no page was gone, and its size and the
  // time of its last write are the same.
  bool IsIntact() const;

 private:
  MappedFile() = default;

  int file_ = -1;
  uint64_t bytes_ = 0;
  timespec written_{};
  const uint8_t* data_ = nullptr;
  MappedRange* range_ = nullptr;
};

}  // namespace vkv::host

#endif  // VKV_HOST_MAPPED_FILE_H_
