// Reorderer: writes a record again with its tokens in another order, so that those that are read together lie in few
// chunks. What is read stays the same, before, meanwhile and after: the new record has a higher sequence number, counts
// once it is on disk for good, and readers of the old one go on in its file. Threads: any, each with a scratch buffer
// of its own.
#ifndef VKV_STORE_REORDERER_H_
#define VKV_STORE_REORDERER_H_

#include <span>

#include "store/record_reader.h"
#include "store/record_writer.h"

namespace vkv::store {

struct Reordered {
  Outcome outcome = Outcome::kFailed;
  ReadState state = ReadState::kGood;  // kAbsent: no record of so many tokens, or one that they do not divide
  bool is_too_large = false;
};

class Reorderer {
 public:
  Reorderer(StoreContext& context, SegmentLog& log, RecordWriter& writer)
      : context_(context), log_(log), writer_(writer) {}

  // kDone: the record is stored in this order. Any other outcome leaves it as it is.
  Reordered Reorder(const Key& key, std::span<const uint32_t> stored_to_logical, AlignedBuffer& scratch);

 private:
  Reordered Rewrite(const RecordPlace& from, uint64_t sequence, std::span<const uint32_t> stored_to_logical,
                    AlignedBuffer& scratch);
  // Reads a stripe into `rows`, in the order in which it is to be stored. Every byte is checked: damage gets no new
  // sum.
  ReadState ReadStripe(const RecordPlace& from, const StripeEntry& stripe, std::span<const uint32_t> order,
                       std::span<uint8_t> rows, AlignedBuffer& scratch);

  StoreContext& context_;
  SegmentLog& log_;
  RecordWriter& writer_;
};

}  // namespace vkv::store

#endif  // VKV_STORE_REORDERER_H_
