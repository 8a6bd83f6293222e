// FileCalls: the system calls that a store makes, one function each, and the place where a test's FileFaults come in.
// Validates and retries nothing: each returns 0 or an errno. Owns nothing. Threads: any.
#ifndef VKV_STORE_FILE_CALLS_H_
#define VKV_STORE_FILE_CALLS_H_

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "store/file_faults.h"

namespace vkv::store {

// What reads moved, of all files together.
struct ReadTraffic {
  std::atomic<uint64_t> calls{0}, bytes{0};
};

class FileCalls {
 public:
  // `faults`: null but in tests.
  explicit FileCalls(std::shared_ptr<FileFaults> faults)
      : faults_(std::move(faults)), reads_(std::make_shared<ReadTraffic>()) {}
  // Shared by all copies of this.
  const ReadTraffic& reads() const { return *reads_; }

  int Open(const std::string& path, int flags, int& file) const;
  void Close(int file) const;
  // At most `bytes` bytes; `moved` says how many: 0 of a read is the end of the file.
  int Read(int file, void* into, size_t bytes, uint64_t offset, size_t& moved) const;
  // The same into several places; counts as a read.
  int ReadScattered(int file, const iovec* parts, size_t count, uint64_t offset, size_t& moved) const;
  int Write(int file, const void* from, size_t bytes, uint64_t offset, size_t& moved) const;
  // The file has this size and room on disk for it.
  int Allocate(int file, uint64_t bytes) const;
  int Truncate(int file, uint64_t bytes) const;
  int Size(int file, uint64_t& bytes) const;
  // fdatasync of a file; fsync of a folder.
  int Sync(int file) const;
  int SyncFolder(const std::string& path) const;
  int Rename(const std::string& from, const std::string& to) const;
  int Unlink(const std::string& path) const;
  // EEXIST where it is there.
  int MakeFolder(const std::string& path) const;
  // Without waiting: EWOULDBLOCK where another open file has it.
  int Lock(int file) const;
  // Random bytes, at most 256. Any error, where the system has none.
  int Random(void* into, size_t bytes) const;
  // Names in a folder but `.` and `..`, sorted.
  int ReadFolder(const std::string& path, std::vector<std::string>& names) const;

  // A place that a test can end the process at; see KillAt.
  void Pass(const char* point) const {
    if (faults_) [[unlikely]]
      faults_->Pass(point);
  }

 private:
  FileFaults::Verdict Before(FileCall kind) const {
    if (faults_) [[unlikely]]
      return faults_->Before(kind);
    return {};
  }
  void Note(FileCall kind, const std::string& path, uint64_t offset = 0, const std::string& other = {}) const;

  void CountRead(size_t bytes) const {
    ++reads_->calls;
    reads_->bytes += bytes;
  }

  std::shared_ptr<FileFaults> faults_;
  std::shared_ptr<ReadTraffic> reads_;
};

}  // namespace vkv::store

#endif  // VKV_STORE_FILE_CALLS_H_
