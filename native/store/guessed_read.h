// GuessedRead: reads a record before its header is known, which comes with its first bytes: a read of its own for the
// header would keep a thread, and all that comes behind it, as long as a read of a mebibyte does. What was read is
// worth nothing before the header says that everything lies where it was guessed, and the sums hold. Of files with
// O_DIRECT alone; elsewhere the system has read ahead.
#ifndef VKV_STORE_GUESSED_READ_H_
#define VKV_STORE_GUESSED_READ_H_

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "store/read_plan.h"
#include "store/segment.h"

namespace vkv::store {

class GuessedRead {
 public:
  // Guesses that the record has these requests as its stripes, whole and in their order. Null where it has not as many
  // bytes, or its chunks cannot go from the file into their targets.
  static std::unique_ptr<GuessedRead> Plan(const std::vector<ReadRequest>& requests, const RecordPlace& place);

  size_t pieces() const { return plan_.pieces.size(); }
  // Run each piece once, on any thread, the pieces of several threads in parallel.
  void Run(size_t piece);

  // All from here on for one thread, once all pieces are over. The header as the file has it; empty where a piece
  // could not be read.
  std::span<const uint8_t> header() const;
  uint64_t read_bytes() const { return read_bytes_; }
  // Whether each chunk of the plan, which must be divided, lies where it was guessed and has gone into its target.
  bool HasRead(const ReadPlan& plan) const;

 private:
  GuessedRead(const RecordPlace& place, uint64_t front_bytes) : place_(place), front_(front_bytes) {}

  const RecordPlace place_;
  const AlignedBuffer front_;  // the header and what fills its last block
  ReadPlan plan_;
  std::atomic<uint64_t> read_bytes_{0};
  std::atomic<bool> has_failed_{false};
};

}  // namespace vkv::store

#endif  // VKV_STORE_GUESSED_READ_H_
