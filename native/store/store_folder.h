// StoreFolder: the folder of a store: makes it, says whose it is, and holds its lock, so that one store at a time uses
// it. Files that are not a store's are left alone. One thread.
#ifndef VKV_STORE_STORE_FOLDER_H_
#define VKV_STORE_STORE_FOLDER_H_

#include <memory>
#include <string>
#include <vector>

#include "status.h"
#include "store/store_context.h"

namespace vkv::store {

class StoreFolder {
 public:
  explicit StoreFolder(StoreContext& context) : context_(context) {}

  // Makes or finds the folder, locks it, deletes what a crash left unfinished, and sets the context's folder.
  // kStoreUnavailable, kStoreLocked, kStoreForeign or kStoreVersion; `path` is what the failure is about then.
  Status Open(std::string& path);

  // Keys of the blocks that have a file.
  std::vector<Key> TakeKeys() { return std::move(keys_); }
  // The folder's own size, with the identity and the lock.
  uint64_t own_bytes() const { return own_bytes_; }
  // Unfinished files that could not be deleted, by the keys of their blocks.
  struct Left {
    Key key;
    uint64_t bytes;
  };
  const std::vector<Left>& left() const { return left_; }

 private:
  Status MakeFolders();
  Status MakeFolder(const std::string& path);
  // A start that was cut off may have made folders whose names are not on disk for good.
  Status SyncFoldersAbove();
  Status CheckIdentity(bool& is_there);
  Status WriteIdentityFile();
  Status Lock();
  Status List();
  Status Unavailable(const char* call, int error, const std::string& path);

  StoreContext& context_;
  std::string path_;
  std::unique_ptr<BlockFile> lock_;
  std::vector<Key> keys_;
  std::vector<Left> left_;
  uint64_t own_bytes_ = 0;
};

}  // namespace vkv::store

#endif  // VKV_STORE_STORE_FOLDER_H_
