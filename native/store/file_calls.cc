#include "store/file_calls.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

namespace vkv::store {
namespace {

constexpr int kFileMode = 0600;
constexpr int kFolderMode = 0700;
constexpr uint64_t kBlock = 4096;

int ResultOf(int64_t returned) { return returned < 0 ? errno : 0; }

void FlipBit(std::span<const iovec> parts, uint64_t bit) {
  for (const iovec& part : parts) {
    if (bit < part.iov_len * 8) {
      static_cast<uint8_t*>(part.iov_base)[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
      return;
    }
    bit -= part.iov_len * 8;
  }
}

// Leaves the first `bytes` of the parts, and one part at least.
void Shorten(std::vector<iovec>& parts, uint64_t bytes) {
  for (size_t k = 0; k < parts.size(); ++k) {
    if (parts[k].iov_len >= bytes) {
      parts[k].iov_len = bytes;
      parts.resize(k + 1);
      return;
    }
    bytes -= parts[k].iov_len;
  }
}

}  // namespace

void FileCalls::Note(FileCall kind, const std::string& path, uint64_t offset, const std::string& other) const {
  if (faults_) [[unlikely]]
    faults_->Note({kind, path, other, offset, {}});
}

int FileCalls::Open(const std::string& path, int flags, int& file) const {
  if (const int error = Before(FileCall::kOpen).error) return error;
  // Not to wait for the other end of a pipe that lies where a file should; files know no O_NONBLOCK.
  file = open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, kFileMode);
  if (file < 0) return errno;
  if (faults_) [[unlikely]]
    faults_->Opened(file, path, (flags & O_CREAT) != 0);
  return 0;
}

void FileCalls::Close(int file) const { close(file); }

void FileCalls::ReadAhead(int file, uint64_t bytes) const {
  (void)posix_fadvise(file, 0, static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

int FileCalls::Read(int file, std::span<const iovec> parts, uint64_t offset, size_t& moved) const {
  moved = 0;
  const FileFaults::Verdict verdict = Before(FileCall::kRead);
  if (verdict.error != 0) return verdict.error;
  const ssize_t returned = preadv(file, parts.data(), static_cast<int>(parts.size()), static_cast<off_t>(offset));
  if (returned < 0) return errno;
  moved = static_cast<size_t>(returned);
  if (verdict.most_bytes >= 0) moved = std::min(moved, static_cast<size_t>(verdict.most_bytes));
  if (verdict.flipped_bit >= 0 && moved > 0) FlipBit(parts, static_cast<uint64_t>(verdict.flipped_bit) % (moved * 8));
  ++reads_->calls;
  reads_->bytes += moved;
  return 0;
}

int FileCalls::Write(int file, std::span<const iovec> parts, uint64_t offset, size_t& moved) const {
  moved = 0;
  const FileFaults::Verdict verdict = Before(FileCall::kWrite);
  if (verdict.error != 0) return verdict.error;
  // Whole blocks reach the file, as O_DIRECT wants it; the rest of the last counts as not written.
  std::vector<iovec> most(parts.begin(), parts.end());
  if (verdict.most_bytes >= 0)
    Shorten(most, (static_cast<uint64_t>(verdict.most_bytes) + kBlock - 1) / kBlock * kBlock);
  const ssize_t returned = pwritev(file, most.data(), static_cast<int>(most.size()), static_cast<off_t>(offset));
  if (returned < 0) return errno;
  moved = static_cast<size_t>(returned);
  if (verdict.most_bytes >= 0) moved = std::min(moved, static_cast<size_t>(verdict.most_bytes));
  if (faults_) [[unlikely]] {
    FileChange change = {FileCall::kWrite, faults_->PathOf(file), {}, offset, {}};
    for (const iovec& part : most) {
      const auto* data = static_cast<const uint8_t*>(part.iov_base);
      const size_t bytes = std::min(part.iov_len, moved - change.bytes.size());
      change.bytes.insert(change.bytes.end(), data, data + bytes);
    }
    faults_->Note(std::move(change));
  }
  return 0;
}

int FileCalls::Size(int file, uint64_t& bytes, double* modified_ms) const {
  if (const int error = Before(FileCall::kSize).error) return error;
  struct stat found = {};
  if (fstat(file, &found) != 0) return errno;
  bytes = static_cast<uint64_t>(found.st_size);
  if (modified_ms != nullptr)
    *modified_ms = static_cast<double>(found.st_mtim.tv_sec) * 1e3 + static_cast<double>(found.st_mtim.tv_nsec) / 1e6;
  return 0;
}

int FileCalls::SizeOf(const std::string& path, uint64_t& bytes) const {
  if (const int error = Before(FileCall::kSize).error) return error;
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) return errno;
  bytes = static_cast<uint64_t>(found.st_size);
  return 0;
}

int FileCalls::Sync(int file) const {
  const uint64_t begun = faults_ ? faults_->JournalLength() : 0;
  if (const int error = Before(FileCall::kSync).error) return error;
  const int error = ResultOf(fdatasync(file));
  if (error == 0 && faults_) [[unlikely]]
    Note(FileCall::kSync, faults_->PathOf(file), begun);
  return error;
}

int FileCalls::SyncFolder(const std::string& path) const {
  const uint64_t begun = faults_ ? faults_->JournalLength() : 0;
  if (const int error = Before(FileCall::kSyncFolder).error) return error;
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return errno;
  const int error = ResultOf(fsync(folder));
  close(folder);
  if (error == 0) Note(FileCall::kSyncFolder, path, begun);
  return error;
}

int FileCalls::Rename(const std::string& from, const std::string& to) const {
  if (const int error = Before(FileCall::kRename).error) return error;
  const int error = ResultOf(rename(from.c_str(), to.c_str()));
  if (error == 0) Note(FileCall::kRename, from, 0, to);
  return error;
}

int FileCalls::Unlink(const std::string& path) const {
  if (const int error = Before(FileCall::kUnlink).error) return error;
  const int error = ResultOf(unlink(path.c_str()));
  if (error == 0) Note(FileCall::kUnlink, path);
  return error;
}

int FileCalls::MakeFolder(const std::string& path) const {
  if (const int error = Before(FileCall::kMakeFolder).error) return error;
  const int error = ResultOf(mkdir(path.c_str(), kFolderMode));
  if (error == 0) Note(FileCall::kMakeFolder, path);
  return error;
}

int FileCalls::Lock(int file) const {
  if (const int error = Before(FileCall::kLock).error) return error;
  return ResultOf(flock(file, LOCK_EX | LOCK_NB));
}

int FileCalls::ReadFolder(const std::string& path, std::vector<std::string>& names) const {
  if (const int error = Before(FileCall::kReadFolder).error) return error;
  const int file = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return errno;
  DIR* const folder = fdopendir(file);
  if (folder == nullptr) {
    const int refused = errno;
    close(file);
    return refused;
  }
  names.clear();
  errno = 0;
  while (const dirent* entry = readdir(folder)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  const int error = errno;
  closedir(folder);
  std::sort(names.begin(), names.end());
  return error;
}

}  // namespace vkv::store
