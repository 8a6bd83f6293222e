#include "store/block_file.h"

#include <errno.h>
#include <fcntl.h>

#include <cstring>

namespace vkv::store {
namespace {

// Calls in a row that are interrupted or move nothing, before a call counts as refused.
constexpr int kMostVain = 100;

}  // namespace

AlignedBuffer::AlignedBuffer(uint64_t bytes) {
  const uint64_t whole = ToBlocks(bytes);
  data_.reset(static_cast<uint8_t*>(std::aligned_alloc(kBlockBytes, whole)));
  if (!data_) return;
  bytes_ = whole;
  std::memset(data_.get(), 0, whole);
}

int BlockFile::Open(const FileCalls& calls, const std::string& path, int flags, bool& direct,
                    std::unique_ptr<BlockFile>& file) {
  int opened = -1;
  int error = calls.Open(path, flags | (direct ? O_DIRECT : 0), opened);
  if (error == EINVAL && direct) {
    direct = false;
    // The refused call may have made the file.
    error = calls.Open(path, flags & ~O_EXCL, opened);
  }
  if (error != 0) return error;
  file.reset(new BlockFile(calls, path, opened, direct));
  return 0;
}

int BlockFile::Read(void* into, uint64_t bytes, uint64_t offset, uint64_t& read) const {
  read = 0;
  uint64_t done = 0;  // as far as the next call goes on: of a direct file whole blocks
  for (int vain = 0; done < bytes;) {
    size_t moved = 0;
    const int error = calls_.Read(file_, static_cast<uint8_t*>(into) + done, bytes - done, offset + done, moved);
    if (error != 0 && (error != EINTR || ++vain == kMostVain)) return error;
    if (error != 0) continue;
    if (done + moved <= read) {
      if (moved == 0) return 0;
      // What comes of one block again and again is all there is of it, where the file ends there.
      uint64_t size = 0;
      if (const int refused = ++vain == 1 ? 0 : calls_.Size(file_, size)) return refused;
      if (vain > 1 && size <= offset + read) return 0;
      if (vain == kMostVain) return EIO;
      continue;
    }
    read = done + moved;
    done = is_direct_ ? read / kBlockBytes * kBlockBytes : read;
    vain = 0;
  }
  return 0;
}

bool BlockFile::ReadParts(const iovec* parts, size_t count, uint64_t bytes, uint64_t offset) const {
  size_t moved = 0;
  return calls_.ReadScattered(file_, parts, count, offset, moved) == 0 && moved == bytes;
}

int BlockFile::Write(const void* from, uint64_t bytes, uint64_t offset) const {
  uint64_t done = 0;
  for (int vain = 0; done < bytes;) {
    size_t moved = 0;
    const int error = calls_.Write(file_, static_cast<const uint8_t*>(from) + done, bytes - done, offset + done, moved);
    if (error != 0 && error != EINTR) return error;
    const uint64_t before = done;
    done = is_direct_ ? (done + moved) / kBlockBytes * kBlockBytes : done + moved;
    if (done > before)
      vain = 0;
    else if (++vain == kMostVain)
      return error != 0 ? error : EIO;
  }
  return 0;
}

}  // namespace vkv::store
