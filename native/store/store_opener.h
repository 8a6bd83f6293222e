// StoreOpener: finds or makes the folder of a namespace, locks it, and rebuilds the index from its segments: from the
// footers of those that are sealed, from the headers of the others. Owns the lock while it lives. For one thread.
#ifndef VKV_STORE_STORE_OPENER_H_
#define VKV_STORE_STORE_OPENER_H_

#include <memory>
#include <string>

#include "status.h"
#include "store/segment_log.h"

namespace vkv::store {

class StoreOpener {
 public:
  StoreOpener(StoreContext& context, SegmentLog& log) : context_(context), log_(log) {}

  // kStoreUnavailable, kStoreLocked, kStoreForeign or kStoreVersion, before anything was changed but folders that were
  // made; `path` is what it is about.
  Status Open(std::string& path);
  // Writes footers where a crash left none; call once files without anything alive are gone.
  void SealTails();

 private:
  Status MakeFolders();
  Status MakeFolder(const std::string& path);
  Status CheckIdentity(bool& is_there);
  Status WriteIdentityFile();
  Status Lock();
  Status LoadSegments(const std::vector<std::string>& names);
  Status LoadSegment(const std::string& name, Epoch epoch, uint64_t number);
  bool LoadFooter(Segment& segment, uint64_t size);
  // Returns an errno; kLaterVersion in `parsed` where a record says so.
  int ScanHeaders(Segment& segment, uint64_t size, Parsed& parsed);
  void AddRecord(Segment& segment, const RecordHeader& header, std::span<const uint8_t> bytes, bool is_sealed);
  Status Unavailable(const char* call, int error, const std::string& path);

  StoreContext& context_;
  SegmentLog& log_;
  std::unique_ptr<BlockFile> lock_;
  std::string path_;  // of the failure
};

}  // namespace vkv::store

#endif  // VKV_STORE_STORE_OPENER_H_
