// BlockCopier: threads of a cache that copy tokens of its slots to and from packed blocks of plain memory, with a
// checksum for every tensor.
//
// A block of n tokens is, for each tensor in order, its stripe [n, token bytes], one behind the other, the same under
// every layout. Storing sums each stripe while it copies; loading sums the whole stripe again and says which one is not
// what was stored: then what it wrote of the tokens is anything, and the caller does not commit them. Behind the
// stripes of the tensors a store may write probes: the first bytes of each token of some tensors once more, with sums
// of their own, to be read without the rest; a load passes them over. On a device with streams each thread has two
// lanes (copy_lane.h): the device copies through one while the CPU works on the other. Copies come after what their
// owner has ordered before `gate`, and after the driver's default stream. A copy is told when all of it is over: until
// then its slot's rows are its caller's to keep. It calls no JavaScript.
//
// Pre, until a copy is told as done: nothing unmaps, moves or queues work on the slot's tokens; the memory stays.
// Threads: all methods from the owner's thread; `done` is called on the copier's.
#ifndef VKV_BLOCK_COPIER_H_
#define VKV_BLOCK_COPIER_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "copy_lane.h"
#include "kv_cache.h"
#include "pattern.h"
#include "quiet_thread.h"
#include "status.h"

namespace vkv {

// The first `bytes` bytes of each token of a tensor.
struct TensorProbe {
  size_t tensor;
  uint64_t bytes;
};

struct BlockCopy {
  uint64_t id;   // the caller's
  bool is_load;  // into the slot
  int32_t slot;
  uint64_t from;          // token of the slot
  uint64_t tokens;        // how many
  uint64_t skipped;       // load: tokens of the block before them
  uint64_t block_tokens;  // load: tokens of the block; store: `tokens`
  uint8_t* payload;
  uint64_t payload_bytes;
  uint32_t* sums;   // one per tensor, then one per probe: written by a store; a load compares those of tensors
  bool is_ordered;  // behind what is queued on the gate
};

struct BlockCopied {
  uint64_t id;
  Status status;
  int32_t damaged_tensor;  // of a load: the first whose sum is another; -1: none
};

class BlockCopier {
 public:
  // Memory of the lanes that are open. Copies through pageable memory wait.
  struct Staging {
    uint64_t pinned_bytes = 0;
    uint64_t pageable_bytes = 0;
  };

  // `done` must not wait for the owner's thread.
  // A probe that is no part of a tensor makes `Begin` fail.
  BlockCopier(KvCache& cache, std::vector<TensorSpan> tensors, std::vector<TensorProbe> probes,
              std::function<void(const BlockCopied&)> done);
  ~BlockCopier();
  BlockCopier(const BlockCopier&) = delete;
  BlockCopier& operator=(const BlockCopier&) = delete;

  // At least one thread runs when it is ok.
  Status Start(int threads);
  uint64_t BlockBytes(uint64_t tokens) const { return tokens * (token_bytes_ + probe_bytes_); }
  // Empty where the CPU copies by itself. Lanes open with their thread's first copy.
  std::optional<Staging> staging() const;
  size_t stripes() const { return tensors_.size() + probes_.size(); }
  // A stream without work of its own: what it is made to wait for comes before ordered copies that are begun later.
  Status Gate(Stream& gate);
  // Before anything is copied: kInternal when the slot has no rows for the tokens or the payload is too short, and what
  // recording an event gives.
  Status Begin(const BlockCopy& copy);
  // Drops what has not begun, and waits for what has: no copy uses a slot or memory when it returns, and none that was
  // dropped is told as done. Returns how many were dropped.
  size_t Cancel();
  // Cancels and joins the threads. Idempotent.
  void Stop();
  // Stops, and gives streams and buffers back. Idempotent, retryable.
  Status Close();

 private:
  static constexpr size_t kLanes = 2;
  using Lanes = std::array<CopyLane, kLanes>;
  struct Queued {
    BlockCopy copy;
    std::optional<Event> behind;
  };
  // Tokens [first, first + count) of one reservation, counted from the first one that is copied (of a load: from the
  // block's).
  struct Piece {
    size_t reservation;
    uint64_t first;
    uint64_t count;
  };

  void Run();
  BlockCopied Do(const Queued& queued, Lanes& lanes);
  Status OpenLanes(const Queued& queued, Lanes& lanes);
  // Makes the lane's buffer where it is missing, and counts it.
  Status OpenLane(CopyLane& lane);
  Status DropEvent(std::optional<Event> event);
  Status Store(const BlockCopy& copy, Lanes& lanes);
  Status Load(const BlockCopy& copy, Lanes& lanes, int32_t& damaged_tensor);
  // Once the tensors of a store are in the payload.
  void WriteProbes(const BlockCopy& copy) const;
  // Waits for a lane, and takes the pieces of a store that it brought.
  Status Finish(const BlockCopy& copy, CopyLane& lane, std::vector<Piece>& pieces);
  // Between the tokens of a piece, [token, tensor, byte], and its place in the payload; `sums` are those before it.
  void Take(const BlockCopy& copy, const Piece& piece, const uint8_t* tokens, uint32_t* sums) const;
  // `tokens`: of those of the piece that are wanted, the first.
  void Give(const BlockCopy& copy, const Piece& piece, uint8_t* tokens, uint32_t* sums) const;
  // Of a load's piece, the tokens that are wanted: the block's [first, first + count).
  static Piece Wanted(const BlockCopy& copy, const Piece& piece);
  // The first tensor of the reservation whose sum is another; -1: none.
  int32_t Damaged(const BlockCopy& copy, size_t reservation, const uint32_t* sums) const;
  uint64_t TokenAddress(const BlockCopy& copy, size_t reservation) const;

  KvCache& cache_;
  const std::vector<TensorSpan> tensors_;
  const std::vector<TensorProbe> probes_;
  const std::function<void(const BlockCopied&)> done_;
  const bool is_direct_;                             // the CPU copies by itself, on the thread that asks
  uint64_t token_bytes_ = 0;                         // of all tensors
  uint64_t probe_bytes_ = 0;                         // of all probes
  bool has_probes_ = true;                           // whether each is a part of its tensor
  std::vector<std::vector<size_t>> by_reservation_;  // indices into tensors_
  std::vector<uint64_t> stripe_starts_;              // by tensor: where its stripe begins in a block of one token
  uint64_t lane_bytes_ = 0;
  std::vector<std::unique_ptr<QuietThread>> threads_;
  std::vector<std::unique_ptr<Lanes>> lanes_;  // each a thread's, the owner's once the threads are joined
  std::atomic<size_t> started_{0};             // threads that have taken their lanes
  std::atomic<uint64_t> pinned_bytes_{0};      // of open lanes
  std::atomic<uint64_t> pageable_bytes_{0};
  std::optional<Stream> gate_;  // the owner's

  std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  std::condition_variable finished_;
  std::deque<Queued> queue_;
  int running_ = 0;
  bool is_stopping_ = false;
};

}  // namespace vkv

#endif  // VKV_BLOCK_COPIER_H_
