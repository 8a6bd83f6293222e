// Collector: gives the bytes of removed records back: deletes files without anything alive, and copies what is alive
// out of files that are less than half so, or, in a full store, less than others. Threads: any; one collects at a time.
#ifndef VKV_STORE_COLLECTOR_H_
#define VKV_STORE_COLLECTOR_H_

#include <atomic>
#include <mutex>
#include <span>
#include <vector>

#include "store/record_writer.h"

namespace vkv::store {

struct Collected {
  uint64_t dropped_segments = 0;
  uint64_t freed_bytes = 0;
  uint64_t copied_bytes = 0;
};

class Collector {
 public:
  Collector(StoreContext& context, SegmentLog& log, RecordWriter& writer)
      : context_(context), log_(log), writer_(writer) {}

  // Deletes the files that have nothing alive. Needs no room.
  void DropDead(Collected& collected);
  // Copies and deletes until no file is less than half alive, or there is no room for copies. Where records have no
  // room even so, it goes on with the file of least life, as long as that is at most seven eighths alive.
  Collected Collect(AlignedBuffer& scratch);
  // A collection, going on or to come, ends at the next record: what it has copied by then is kept, and no file is
  // given back any more. For the end of the store. Threads: any.
  void Stop() { is_stopping_ = true; }

 private:
  // The one to be emptied now; null where none is worth it.
  std::shared_ptr<Segment> Next(std::span<const uint64_t> passed);
  // False where it could not be emptied.
  bool Empty(Segment& segment, AlignedBuffer& scratch, Collected& collected);
  // The payloads of what is alive; false where one could not be copied.
  bool CopyPayloads(Segment& segment, AlignedBuffer& scratch, std::vector<RecordCopy>& copies);
  // The copy is over. Its room is given back where its header was not written.
  void End(const RecordCopy& copy, bool has_header);

  StoreContext& context_;
  SegmentLog& log_;
  RecordWriter& writer_;
  std::atomic<bool> is_stopping_{false};
  std::mutex mutex_;  // held while one collects
};

}  // namespace vkv::store

#endif  // VKV_STORE_COLLECTOR_H_
