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

// A record on its way to the end of the log.
struct RecordCopy {
  RecordPlace from;
  RecordHeader header;
  Room room;
  size_t entry = 0;  // once its header is written
};

// When a record's header may be written. A loss of power keeps some of what is not synced: where it keeps a header and
// loses the payload, the record is damaged, and may outrank the one that it was copied from.
enum class HeaderAfter : uint8_t { kPayloadWritten, kPayloadSynced };

class RecordWriter {
 public:
  RecordWriter(StoreContext& context, SegmentLog& log) : context_(context), log_(log) {}

  // Where the bytes of a stripe lie; null where they cannot be had. Asked for one stripe after the other, each once.
  using Source = std::function<const uint8_t*(size_t stripe)>;

  // Writes a record whose stripes are placed, dead as yet. Its room is the caller's to release where this is kDone.
  Outcome Write(RecordHeader& header, const Source& source, HeaderAfter after, AlignedBuffer& scratch, Room& room,
                size_t& entry);

  // Of a key for which BeginPut was true; ends the put. kDone: stored, durable where the options say so.
  Outcome Put(PutRequest& request, AlignedBuffer& scratch);

  // Writes down what is unrecorded. kDone when nothing is left.
  Outcome RecordRemovals();

  // Whether there is something unrecorded.
  bool HasWork() { return context_.index.HasUnrecorded(); }

  // Copies the payload of the record at `copy.from` to the end of the log. Where this is kDone its room is the caller's
  // to give back, or to release once the copy counts. `is_lost`: the original's header cannot be read any more.
  Outcome CopyPayload(RecordCopy& copy, AlignedBuffer& scratch, bool& is_lost);
  // Writes the header of a copy whose payload is synced: a record, dead as yet.
  Outcome CopyHeader(RecordCopy& copy);

 private:
  int WritePayload(RecordHeader& header, const Source& source, const Room& room, AlignedBuffer& scratch);
  int MovePayload(const RecordCopy& copy, AlignedBuffer& scratch);
  // Writes the header and adds the entry; where it is refused, the room counts as doubtful.
  int WriteRecordHeader(RecordHeader& header, const Room& room, size_t& entry);
  Outcome WriteRemovals(std::span<const Removal> removals);
  void CountUnsynced(uint64_t bytes);
  static Outcome OutcomeOf(int error);

  StoreContext& context_;
  SegmentLog& log_;
  std::mutex removals_mutex_;  // held while removals are written: a removal that waited finds itself written
};

}  // namespace vkv::store

#endif  // VKV_STORE_RECORD_WRITER_H_
