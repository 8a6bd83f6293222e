// FileCalls: the system calls that a store makes, one function each, and the place where a test's FileFaults come in.
// Validates and retries nothing: each returns 0 or an errno. Owns nothing. Threads: any.
#ifndef VKV_STORE_FILE_CALLS_H_
#define VKV_STORE_FILE_CALLS_H_

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
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
  // Has the system read the file's first bytes into its page cache, and does not wait. A hint: it does not fail.
  void ReadAhead(int file, uint64_t bytes) const;
  // At most all of the parts; `moved` says how many bytes: 0 of a read is the end of the file.
  int Read(int file, std::span<const iovec> parts, uint64_t offset, size_t& moved) const;
  int Write(int file, std::span<const iovec> parts, uint64_t offset, size_t& moved) const;
  // `modified_ms`: when it was written last, since 1970.
  int Size(int file, uint64_t& bytes, double* modified_ms = nullptr) const;
  // Of a file or folder.
  int SizeOf(const std::string& path, uint64_t& bytes) const;
  // fdatasync of a file; fsync of a folder.
  int Sync(int file) const;
  int SyncFolder(const std::string& path) const;
  int Rename(const std::string& from, const std::string& to) const;
  int Unlink(const std::string& path) const;
  // EEXIST where it is there.
  int MakeFolder(const std::string& path) const;
  // Without waiting: EWOULDBLOCK where another open file has it.
  int Lock(int file) const;
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

  std::shared_ptr<FileFaults> faults_;
  std::shared_ptr<ReadTraffic> reads_;
};

}  // namespace vkv::store

#endif  // VKV_STORE_FILE_CALLS_H_
