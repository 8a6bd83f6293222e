// Pattern: bytes that identify their owner. Every token of every tensor gets bytes made from a key (a sequence's), the
// tensor's index and the token's position; reading them back proves that no page was lost, shared or mixed up.
//
// Used by `vkv replay --verify` and by tests of engines; works through Driver::Write and Read, so on every driver that
// has memory. Threads: one at a time (it owns its staging buffers).
#ifndef VKV_PATTERN_H_
#define VKV_PATTERN_H_

#include <cstdint>
#include <vector>

#include "kv_cache.h"
#include "status.h"

namespace vkv {

// Where one tensor's part of a token lies: reservation, offset in that reservation's token, bytes.
struct TensorSpan {
  uint32_t reservation;
  uint64_t offset_bytes;
  uint64_t bytes;
};

class Pattern {
 public:
  Pattern(KvCache& cache, std::vector<TensorSpan> tensors);

  // Writes tokens [from, from + tokens) of the slot in every tensor. Pre: mapped (else kCopyOutOfRange).
  Status Stamp(int32_t slot, uint64_t from, uint64_t tokens, uint64_t key);
  // Counts tokens of which any tensor differs from what Stamp wrote.
  Status Check(int32_t slot, uint64_t from, uint64_t tokens, uint64_t key, uint64_t& wrong_tokens);

 private:
  // Renders tokens [from, from + tokens) of one reservation, [token, tensor, byte].
  void Render(size_t reservation, uint64_t from, uint64_t tokens, uint64_t key, uint8_t* to) const;
  uint64_t TokensPerStage(size_t reservation) const;
  uint64_t Address(int32_t slot, size_t reservation, uint64_t token) const;

  KvCache& cache_;
  std::vector<TensorSpan> tensors_;
  std::vector<std::vector<uint32_t>> by_reservation_;  // indices into tensors_
  std::vector<uint8_t> expected_;                      // staging: what should be there
  std::vector<uint8_t> found_;                         // staging: what is
};

}  // namespace vkv

#endif  // VKV_PATTERN_H_
