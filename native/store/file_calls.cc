#include "store/file_calls.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
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

}  // namespace

void FileCalls::Note(FileCall kind, const std::string& path, uint64_t offset, const std::string& other) const {
  if (faults_) [[unlikely]]
    faults_->Note({kind, path, other, offset, {}});
}

int FileCalls::Open(const std::string& path, int flags, int& file) const {
  if (const int error = Before(FileCall::kOpen).error) return error;
  file = open(path.c_str(), flags | O_CLOEXEC, kFileMode);
  if (file < 0) return errno;
  if (faults_) [[unlikely]]
    faults_->Opened(file, path, (flags & O_CREAT) != 0);
  return 0;
}

void FileCalls::Close(int file) const { close(file); }

int FileCalls::Read(int file, void* into, size_t bytes, uint64_t offset, size_t& moved) const {
  moved = 0;
  const FileFaults::Verdict verdict = Before(FileCall::kRead);
  if (verdict.error != 0) return verdict.error;
  const ssize_t returned = pread(file, into, bytes, static_cast<off_t>(offset));
  if (returned < 0) return errno;
  moved = static_cast<size_t>(returned);
  if (verdict.most_bytes >= 0) moved = std::min(moved, static_cast<size_t>(verdict.most_bytes));
  if (verdict.flipped_bit >= 0 && moved > 0) {
    const uint64_t bit = static_cast<uint64_t>(verdict.flipped_bit) % (moved * 8);
    static_cast<uint8_t*>(into)[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
  }
  CountRead(moved);
  return 0;
}

int FileCalls::ReadScattered(int file, const iovec* parts, size_t count, uint64_t offset, size_t& moved) const {
  moved = 0;
  const FileFaults::Verdict verdict = Before(FileCall::kRead);
  if (verdict.error != 0) return verdict.error;
  const ssize_t returned = preadv(file, parts, static_cast<int>(count), static_cast<off_t>(offset));
  if (returned < 0) return errno;
  moved = static_cast<size_t>(returned);
  if (verdict.most_bytes >= 0) moved = std::min(moved, static_cast<size_t>(verdict.most_bytes));
  if (verdict.flipped_bit >= 0 && moved > 0) static_cast<uint8_t*>(parts[0].iov_base)[0] ^= 1;
  CountRead(moved);
  return 0;
}

int FileCalls::Write(int file, const void* from, size_t bytes, uint64_t offset, size_t& moved) const {
  moved = 0;
  const FileFaults::Verdict verdict = Before(FileCall::kWrite);
  if (verdict.error != 0) return verdict.error;
  // Whole blocks reach the file, as O_DIRECT wants it; the rest of the last counts as not written.
  const auto most = static_cast<uint64_t>(verdict.most_bytes);
  if (verdict.most_bytes >= 0) bytes = std::min<size_t>(bytes, (most + kBlock - 1) / kBlock * kBlock);
  const ssize_t returned = pwrite(file, from, bytes, static_cast<off_t>(offset));
  if (returned < 0) return errno;
  moved = static_cast<size_t>(returned);
  if (verdict.most_bytes >= 0) moved = std::min<size_t>(moved, most);
  if (faults_) [[unlikely]] {
    const auto* data = static_cast<const uint8_t*>(from);
    faults_->Note({FileCall::kWrite, faults_->PathOf(file), {}, offset, {data, data + moved}});
  }
  return 0;
}

int FileCalls::Allocate(int file, uint64_t bytes) const {
  if (const int error = Before(FileCall::kAllocate).error) return error;
  const int error = ResultOf(fallocate(file, 0, 0, static_cast<off_t>(bytes)));
  if (error == 0 && faults_) [[unlikely]]
    Note(FileCall::kAllocate, faults_->PathOf(file), bytes);
  return error;
}

int FileCalls::Truncate(int file, uint64_t bytes) const {
  if (const int error = Before(FileCall::kTruncate).error) return error;
  const int error = ResultOf(ftruncate(file, static_cast<off_t>(bytes)));
  if (error == 0 && faults_) [[unlikely]]
    Note(FileCall::kTruncate, faults_->PathOf(file), bytes);
  return error;
}

int FileCalls::Size(int file, uint64_t& bytes) const {
  if (const int error = Before(FileCall::kSize).error) return error;
  struct stat found = {};
  if (fstat(file, &found) != 0) return errno;
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

int FileCalls::Random(void* into, size_t bytes) const {
  if (const int error = Before(FileCall::kRandom).error) return error;
  const ssize_t got = getrandom(into, bytes, 0);
  return got < 0 ? errno : static_cast<size_t>(got) == bytes ? 0 : EIO;
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
