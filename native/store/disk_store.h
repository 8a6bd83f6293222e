// DiskStore: a store of records on disk, as the addon sees it: every call but the first few returns at once, and its
// answer is delivered by a thread of the store. Owns the threads, the files and the lock. Calls from one thread; the
// delivery is called by any.
#ifndef VKV_STORE_DISK_STORE_H_
#define VKV_STORE_DISK_STORE_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store/collector.h"
#include "store/reorderer.h"
#include "store/store_opener.h"
#include "store/sync_timer.h"
#include "store/work_queue.h"

namespace vkv::store {

// The answer to the call of that id.
struct Answer {
  int64_t id = 0;
  Status status;
  std::string path;             // what a failure is about
  std::vector<double> numbers;  // as the call says
  std::vector<uint8_t> bytes;
};

// Whether a put could begin, and how it ended: the values of `lib/device/native-store.ts`.
enum class PutState : uint8_t { kStored = 0, kExists = 1, kFull = 2, kNoSpace = 3, kFailed = 4, kTooLarge = 5 };

struct StoreStats {
  IndexTotals totals;
  LastError last_error;
  uint64_t read_calls = 0, read_bytes = 0;  // of the system's, of all files
  bool is_direct = false;
  bool can_allocate = false;
};

class DiskStore {
 public:
  using Deliver = std::function<void(Answer&& answer)>;

  DiskStore(StoreOptions options, Deliver deliver);
  ~DiskStore() { Stop(); }

  // Starts the threads. kDriverCallFailed where the system refuses one.
  Status Start();

  void Open(int64_t id);  // numbers: none
  // kStored: it has begun, and numbers[0] of the answer is its PutState. Any other: it never will, and there is no
  // answer.
  PutState Put(int64_t id, PutRequest request);
  // bytes: a ReadState per request. Without `checks` what was read is not compared with the sums of its chunks: for a
  // caller that has sums of its own.
  void Get(int64_t id, const Key& key, std::vector<ReadRequest> requests, bool checks);
  // bytes: a ReadState per part; numbers: [bytes that were read from files, chunks]
  void GetTokens(int64_t id, const Key& key, TokenRequests tokens);
  // Writes the record again in another order of its tokens. numbers: [a PutState, the ReadState of what was there]
  void Reorder(int64_t id, const Key& key, std::vector<uint32_t> stored_to_logical);
  void Check(int64_t id, const Key& key);  // every byte of a record; numbers[0]: the worst ReadState, numbers[1]: bytes
  // The removal counts when this returns. numbers: [removed, 1 where it is written down]
  void Remove(int64_t id, std::vector<Key> keys);
  // The live records of the first segment with at least this number. numbers: [the next number, or -1], bytes: a
  // listing, see list.cc
  void List(int64_t id, uint64_t segment);
  void Sync(int64_t id);
  void Collect(int64_t id);  // numbers: [dropped segments, freed bytes, copied bytes]
  void Close(int64_t id);    // REQUIRES: all other calls were answered
  bool Has(const Key& key);
  // In memory; written with the record's next copy.
  void SetLevel(const Key& key, uint8_t level) { context_.index.SetLevel(key, level); }
  StoreStats Stats();
  const StoreCounters& counters() const { return context_.counters; }
  // A collection of garbage ends early, without an answer that counts: for the end of the store.
  void StopCollecting() { collector_.Stop(); }
  // Ends what is being done without an answer, and joins; the lock is free when the store is gone.
  void Stop();

 private:
  void RunPiece(const std::shared_ptr<RecordRead>& read, size_t piece, AlignedBuffer& scratch,
                const std::function<void()>& end);
  void RunPieces(const std::shared_ptr<RecordRead>& read, size_t pieces, AlignedBuffer& scratch,
                 const std::function<void()>& end);
  void SyncByTimer();

  StoreContext context_;
  SegmentLog log_;
  RecordWriter writer_;
  Collector collector_;
  Reorderer reorderer_;
  std::unique_ptr<StoreOpener> opener_;
  const Deliver deliver_;
  SyncTimer timer_;
  WorkQueue queue_;
};

// The live records of a segment for JavaScript.
Status ListRecords(StoreContext& context, Segment& segment, std::vector<uint8_t>& listing);

}  // namespace vkv::store

#endif  // VKV_STORE_DISK_STORE_H_
