#include "store/store_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "host/system_calls.h"

namespace vkv::store {
namespace {

constexpr const char* kNewIdentityName = "identity.new";
constexpr const char* kLockName = "lock";

// Whether it is a block's file, or one that was to take its place.
bool ReadName(std::string_view name, Key& key, bool& is_new) {
  const size_t digits = 2 * key.bytes.size();
  if (name.size() <= digits || !Key::FromHex(name.substr(0, digits), key)) return false;
  is_new = name.substr(digits) == ".new";
  return is_new || name.substr(digits) == ".block";
}

bool IsSettled(const std::string& name) {
  return name == kIdentityName || name == kNewIdentityName || name == kLockName;
}

}  // namespace

Status StoreFolder::Unavailable(const char* call, int error, const std::string& path) {
  path_ = path;
  return host::SystemError(Code::kStoreUnavailable, call, error);
}

Status StoreFolder::Open(std::string& path) {
  path_ = context_.options.directory;
  const auto open = [this]() -> Status {
    VKV_RETURN_IF_ERROR(MakeFolders());
    bool is_there = false;
    VKV_RETURN_IF_ERROR(CheckIdentity(is_there));
    VKV_RETURN_IF_ERROR(Lock());
    // Another process may have made it meanwhile.
    VKV_RETURN_IF_ERROR(CheckIdentity(is_there));
    if (!is_there) {
      VKV_RETURN_IF_ERROR(SyncFoldersAbove());
      VKV_RETURN_IF_ERROR(WriteIdentityFile());
    }
    return List();
  };
  const Status status = open();
  path = path_;
  return status;
}

Status StoreFolder::MakeFolders() {
  const std::string& directory = context_.options.directory;
  // All but the last may be beyond this process's rights, as long as they are there.
  for (size_t at = directory.find('/', 1); at != std::string::npos; at = directory.find('/', at + 1))
    (void)MakeFolder(directory.substr(0, at));
  VKV_RETURN_IF_ERROR(MakeFolder(directory));
  context_.folder = directory + "/kvs-" + context_.options.name_space.Hex().substr(0, 32);
  return MakeFolder(context_.folder);
}

Status StoreFolder::MakeFolder(const std::string& path) {
  const int error = context_.calls.MakeFolder(path);
  if (error == EEXIST) return Ok();
  if (error != 0) return access(path.c_str(), F_OK) == 0 ? Ok() : Unavailable("mkdir", error, path);
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos || slash == 0) return Ok();
  const std::string parent = path.substr(0, slash);
  const int synced = context_.calls.SyncFolder(parent);
  return synced == 0 ? Ok() : Unavailable("fsync", synced, parent);
}

Status StoreFolder::SyncFoldersAbove() {
  const std::string& directory = context_.options.directory;
  if (const int error = context_.calls.SyncFolder(directory)) return Unavailable("fsync", error, directory);
  // Those further up may be beyond this process's rights.
  for (size_t at = directory.rfind('/'); at != std::string::npos && at > 0; at = directory.rfind('/', at - 1))
    (void)context_.calls.SyncFolder(directory.substr(0, at));
  return Ok();
}

Status StoreFolder::CheckIdentity(bool& is_there) {
  is_there = false;
  std::vector<std::string> names;
  if (const int error = context_.calls.ReadFolder(context_.folder, names))
    return Unavailable("readdir", error, context_.folder);
  if (std::find(names.begin(), names.end(), kIdentityName) == names.end()) {
    const auto foreign =
        std::find_if(names.begin(), names.end(), [](const std::string& name) { return !IsSettled(name); });
    if (foreign == names.end()) return Ok();  // empty, or never finished
    path_ = context_.PathOf(*foreign);
    return Fail(Code::kStoreForeign, "identity");
  }
  path_ = context_.folder + "/" + kIdentityName;
  std::unique_ptr<BlockFile> file;
  bool direct = false;
  if (const int error = BlockFile::Open(context_.calls, path_, O_RDONLY, direct, file))
    return Unavailable("open", error, path_);
  AlignedBuffer block(kBlockBytes);
  if (block.bytes() == 0) return Unavailable("malloc", ENOMEM, path_);
  uint64_t read = 0;
  const iovec whole = {block.data(), kBlockBytes};
  const int error = file->Read({&whole, 1}, 0, read);
  if (error != 0 && error != ESPIPE) return Unavailable("preadv", error, path_);  // of a pipe nothing was read
  Key name_space;
  uint16_t version = 0;
  const Parsed parsed = read < kBlockBytes ? Parsed::kNone : ReadIdentity(block.data(), name_space, version);
  if (parsed == Parsed::kOtherVersion) return Fail(Code::kStoreVersion, "identity", version, kFormatVersion);
  if (parsed != Parsed::kGood || name_space != context_.options.name_space)
    return Fail(Code::kStoreForeign, "identity");
  is_there = true;
  return Ok();
}

Status StoreFolder::WriteIdentityFile() {
  const std::string made = context_.folder + "/" + kNewIdentityName, path = context_.folder + "/" + kIdentityName;
  std::unique_ptr<BlockFile> file;
  bool direct = false;
  if (const int error = BlockFile::Open(context_.calls, made, O_RDWR | O_CREAT | O_TRUNC, direct, file))
    return Unavailable("open", error, made);
  AlignedBuffer block(kBlockBytes);
  if (block.bytes() == 0) return Unavailable("malloc", ENOMEM, made);
  WriteIdentity(context_.options.name_space, block.data());
  const iovec whole = {block.data(), kBlockBytes};
  int error = file->Write({&whole, 1}, 0);
  if (error != 0) return Unavailable("pwritev", error, made);
  context_.calls.Pass("identity-written");
  // Also with durability `none`: a store whose identity is lost is refused as foreign.
  error = file->Sync();
  if (error != 0) return Unavailable("fdatasync", error, made);
  error = context_.calls.Rename(made, path);
  if (error != 0) return Unavailable("rename", error, made);
  context_.calls.Pass("identity-renamed");
  error = context_.calls.SyncFolder(context_.folder);
  return error == 0 ? Ok() : Unavailable("fsync", error, context_.folder);
}

Status StoreFolder::Lock() {
  const std::string path = context_.folder + "/" + kLockName;
  bool direct = false;
  if (const int error = BlockFile::Open(context_.calls, path, O_RDWR | O_CREAT, direct, lock_))
    return Unavailable("open", error, path);
  AlignedBuffer block(kBlockBytes);
  if (block.bytes() == 0) return Unavailable("malloc", ENOMEM, path);
  std::memset(block.data(), 0, kBlockBytes);
  const iovec whole = {block.data(), kBlockBytes};
  const int error = lock_->Lock();
  if (error == EWOULDBLOCK) {
    uint64_t read = 0;
    (void)lock_->Read({&whole, 1}, 0, read);
    lock_.reset();
    path_ = context_.folder;
    block.data()[kBlockBytes - 1] = 0;
    return Fail(Code::kStoreLocked, "flock", std::strtoll(reinterpret_cast<const char*>(block.data()), nullptr, 10));
  }
  if (error != 0) return Unavailable("flock", error, path);
  const std::string owner = std::to_string(getpid()) + "\n";
  std::memcpy(block.data(), owner.data(), owner.size());
  (void)lock_->Write({&whole, 1}, 0);  // only told to those who are refused
  return Ok();
}

Status StoreFolder::List() {
  std::vector<std::string> names;
  if (const int error = context_.calls.ReadFolder(context_.folder, names))
    return Unavailable("readdir", error, context_.folder);
  own_bytes_ = 2 * kBlockBytes;  // identity and lock
  for (const std::string& name : names) {
    Key key;
    bool is_new = false;
    if (!ReadName(name, key, is_new)) {
      if (!IsSettled(name)) ++context_.counters.foreign_files;
    } else if (!is_new) {
      keys_.push_back(key);
    } else if (const int error = context_.calls.Unlink(context_.PathOf(name))) {
      context_.Failed("unlink", error, context_.counters.failed_writes);
      uint64_t bytes = 0;
      (void)context_.calls.SizeOf(context_.PathOf(name), bytes);
      left_.push_back({key, ToBlocks(bytes)});
    }
  }
  uint64_t folder_bytes = 0;
  if (const int error = context_.calls.SizeOf(context_.folder, folder_bytes))
    return Unavailable("stat", error, context_.folder);
  own_bytes_ += ToBlocks(folder_bytes);
  return Ok();
}

}  // namespace vkv::store
