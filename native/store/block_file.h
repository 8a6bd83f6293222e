// BlockFile: an open file of 4 KiB blocks, read and written whole: goes on after short calls and EINTR, and keeps the
// rules of O_DIRECT where the file was opened with it. AlignedBuffer: memory that both take. Owns its descriptor or
// memory. Threads: any.
#ifndef VKV_STORE_BLOCK_FILE_H_
#define VKV_STORE_BLOCK_FILE_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "store/file_calls.h"

namespace vkv::store {

inline constexpr uint64_t kBlockBytes = 4096;

constexpr uint64_t ToBlocks(uint64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }

// Zeroed memory of whole blocks. Empty where there is none left.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(uint64_t bytes);

  uint8_t* data() const { return data_.get(); }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(uint8_t* data) const { std::free(data); }
  };
  std::unique_ptr<uint8_t, Free> data_;
  uint64_t bytes_ = 0;
};

class BlockFile {
 public:
  // With `direct` the file is opened with O_DIRECT; where that gives EINVAL, without, and `direct` becomes false.
  // Returns an errno.
  static int Open(const FileCalls& calls, const std::string& path, int flags, bool& direct,
                  std::unique_ptr<BlockFile>& file);
  ~BlockFile() { calls_.Close(file_); }
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  // REQUIRES of both: offset and bytes are whole blocks, the memory is aligned to one.
  // `read` is less than `bytes` only where the file ends. Returns an errno.
  int Read(void* into, uint64_t bytes, uint64_t offset, uint64_t& read) const;
  int Write(const void* from, uint64_t bytes, uint64_t offset) const;

  // Tries to read all parts with one call. False where it was refused or moved less, and their content means nothing.
  // REQUIRES, where the file is direct: the parts' addresses and sizes are whole blocks, and so is the offset.
  bool ReadParts(const iovec* parts, size_t count, uint64_t bytes, uint64_t offset) const;
  bool is_direct() const { return is_direct_; }

  int Allocate(uint64_t bytes) const { return calls_.Allocate(file_, bytes); }
  int Truncate(uint64_t bytes) const { return calls_.Truncate(file_, bytes); }
  int Size(uint64_t& bytes) const { return calls_.Size(file_, bytes); }
  int Sync() const { return calls_.Sync(file_); }
  int Lock() const { return calls_.Lock(file_); }
  const std::string& path() const { return path_; }

 private:
  BlockFile(const FileCalls& calls, std::string path, int file, bool is_direct)
      : calls_(calls), path_(std::move(path)), file_(file), is_direct_(is_direct) {}

  const FileCalls calls_;
  const std::string path_;
  const int file_;
  const bool is_direct_;
};

}  // namespace vkv::store

#endif  // VKV_STORE_BLOCK_FILE_H_
