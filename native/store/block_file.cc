#include "store/block_file.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>

namespace vkv::store {
namespace {

// Calls in a row that are interrupted or move nothing, before a call counts as refused.
constexpr int kMostVain = 100;

uint64_t BytesOf(std::span<const iovec> parts) {
  uint64_t bytes = 0;
  for (const iovec& part : parts) bytes += part.iov_len;
  return bytes;
}

// What of the parts lies behind the first `done` bytes.
std::vector<iovec> Behind(std::span<const iovec> parts, uint64_t done) {
  std::vector<iovec> left;
  left.reserve(parts.size());
  for (const iovec& part : parts) {
    const uint64_t skip = std::min<uint64_t>(done, part.iov_len);
    if (skip < part.iov_len) left.push_back({static_cast<uint8_t*>(part.iov_base) + skip, part.iov_len - skip});
    done -= skip;
  }
  return left;
}

}  // namespace

AlignedBuffer::AlignedBuffer(uint64_t bytes) {
  const uint64_t whole = ToBlocks(bytes);
  data_.reset(static_cast<uint8_t*>(std::aligned_alloc(kBlockBytes, whole)));
  if (!data_) return;
  bytes_ = whole;
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

int BlockFile::Read(std::span<const iovec> parts, uint64_t offset, uint64_t& read) const {
  read = 0;
  const uint64_t bytes = BytesOf(parts);
  uint64_t done = 0;  // as far as the next call goes on: of a direct file whole blocks
  for (int vain = 0; done < bytes;) {
    size_t moved = 0;
    const int error = calls_.Read(file_, Behind(parts, done), offset + done, moved);
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

int BlockFile::Write(std::span<const iovec> parts, uint64_t offset) const {
  const uint64_t bytes = BytesOf(parts);
  uint64_t done = 0;
  for (int vain = 0; done < bytes;) {
    size_t moved = 0;
    const int error = calls_.Write(file_, Behind(parts, done), offset + done, moved);
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
