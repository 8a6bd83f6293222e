// BlockFile: an open file of 4 KiB blocks, read and written in parts: goes on after short calls and EINTR, and keeps
// the rules of O_DIRECT where the file was opened with it. AlignedBuffer: memory that both take. Owns its descriptor or
// memory. Threads: any.
#ifndef VKV_STORE_BLOCK_FILE_H_
#define VKV_STORE_BLOCK_FILE_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include "store/file_calls.h"

namespace vkv::store {

inline constexpr uint64_t kBlockBytes = 4096;

constexpr uint64_t ToBlocks(uint64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }

inline bool IsWholeBlocks(const void* address, uint64_t bytes) {
  return ((reinterpret_cast<uintptr_t>(address) | bytes) & (kBlockBytes - 1)) == 0;
}

// Memory of whole blocks, not cleared. Empty where there is none left.
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

  // Both go on until all parts are full or written. REQUIRES, where the file is direct: the offset, and the parts'
  // addresses and sizes, are whole blocks.
  // `read` is less than all of them only where the file ends. Returns an errno.
  int Read(std::span<const iovec> parts, uint64_t offset, uint64_t& read) const;
  int Write(std::span<const iovec> parts, uint64_t offset) const;

  bool is_direct() const { return is_direct_; }
  int Size(uint64_t& bytes, double* modified_ms = nullptr) const { return calls_.Size(file_, bytes, modified_ms); }
  void ReadAhead(uint64_t bytes) const { calls_.ReadAhead(file_, bytes); }
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
