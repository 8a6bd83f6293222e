// RecordWriter: puts records, lists of removals and copies of records into the log. The sums are taken from the bytes
// that are written; the header, which holds them, is written last. Threads: any, each with a scratch buffer of its own.
#ifndef VKV_STORE_RECORD_WRITER_H_
#define VKV_STORE_RECORD_WRITER_H_

#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "store/segment_log.h"

namespace vkv::store {

struct PutRequest {
  RecordHeader header;                  // stripes are placed; epoch, offset and sums are the writer's
  std::vector<const uint8_t*> sources;  // by stripe; the caller's until the put is over
};

class RecordWriter {
 public:
  RecordWriter(StoreContext& context, SegmentLog& log) : context_(context), log_(log) {}

  // Where the bytes of a stripe lie; null where they cannot be had. Asked for one stripe after the other, each once.
  using Source = std::function<const uint8_t*(size_t stripe)>;

  // Writes a record whose stripes are placed, dead as yet. Its room is the caller's to release where this is kDone.
  Outcome Write(RecordHeader& header, const Source& source, AlignedBuffer& scratch, Room& room, size_t& entry);

  // Of a key for which BeginPut was true; ends the put. kDone: stored, durable where the options say so.
  Outcome Put(PutRequest& request, AlignedBuffer& scratch);

  // Writes down what is unrecorded. kDone when nothing is left.
  Outcome RecordRemovals();

  // Whether there is something unrecorded.
  bool HasWork() { return context_.index.HasUnrecorded(); }

  // Copies a record to the end of the log, dead as yet. Its room is the caller's to release once the copy counts. kFull
  // also where the original's header cannot be read any more: `is_lost` tells.
  Outcome Copy(const RecordPlace& from, AlignedBuffer& scratch, Room& room, size_t& entry, bool& is_lost);

 private:
  int WritePayload(RecordHeader& header, const Source& source, const Room& room, AlignedBuffer& scratch);
  int CopyPayload(const RecordPlace& from, const RecordHeader& header, const Room& room, AlignedBuffer& scratch);
  // Writes the header and adds the entry; where it is refused, the room counts as doubtful.
  int WriteRecordHeader(RecordHeader& header, const Room& room, size_t& entry);
  Outcome WriteRemovals(std::span<const Removal> removals);
  void CountUnsynced(uint64_t bytes);
  static Outcome OutcomeOf(int error);

  StoreContext& context_;
  SegmentLog& log_;
  std::mutex removals_mutex_;  // held while removals are written, so that who waits finds its own written
};

}  // namespace vkv::store

#endif  // VKV_STORE_RECORD_WRITER_H_
