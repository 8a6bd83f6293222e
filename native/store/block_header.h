// BlockHeader: what the first bytes of a block's file say: which block it is, how its payload is stored, and the sums
// of its chunks. docs/store-format.md has the bytes, all little endian. A reader trusts no field before the sum over
// all of them holds, and checks every bound then too. Also the file that says whose folder it is. Owns nothing; no I/O.
// Threads: any.
#ifndef VKV_STORE_BLOCK_HEADER_H_
#define VKV_STORE_BLOCK_HEADER_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "store/block_file.h"

namespace vkv::store {

// 1 was the format of a log of segments.
inline constexpr uint16_t kFormatVersion = 2;
// A chunk of a stripe has a sum of its own. Each block says how many bytes its chunks have: a power of two.
inline constexpr uint32_t kLeastChunkBytes = kBlockBytes, kMostChunkBytes = 64 * 1024;
inline constexpr uint64_t kMostHeaderBytes = 512 << 10;
inline constexpr uint64_t kMostPayloadBytes = uint64_t{1} << 32;

struct Key {
  std::array<uint8_t, 32> bytes{};

  bool operator==(const Key&) const = default;
  std::string Hex() const;
  // False unless `hex` is that of a key.
  static bool FromHex(std::string_view hex, Key& key);
};

bool IsChunkBytes(uint64_t bytes);

struct BlockHeader {
  Key name_space, key, parent;
  uint64_t position = 0;
  uint32_t chunk_bytes = kMostChunkBytes;
  uint8_t level = 0;  // the caller's hint of how much the block matters; the store only keeps it
  std::vector<uint32_t> tokens;
  // Of each stripe: bytes of a row, which is one token, and the caller's sum of all rows in the order of the text. The
  // payload is all rows of the first stripe, then those of the second, …
  std::vector<uint32_t> row_bytes, stripe_sums;
  std::vector<uint32_t> chunk_sums;  // of each stripe's chunks in turn, as they are stored
  std::vector<uint8_t> notes;
  // Where rows are not stored in the order of the text: of each stored row which token it is, and of each token its
  // row. Both are empty where they are.
  std::vector<uint32_t> stored_to_logical, logical_to_stored;

  // All from here on follow from the above.
  uint64_t used_bytes() const;  // as far as the sum goes
  uint64_t header_bytes() const { return ToBlocks(used_bytes()); }
  uint64_t payload_bytes() const;
  uint64_t file_bytes() const { return header_bytes() + ToBlocks(payload_bytes()); }
  uint64_t stripe_bytes(size_t stripe) const { return uint64_t{row_bytes[stripe]} * tokens.size(); }
  uint64_t chunks_of(size_t stripe) const { return (stripe_bytes(stripe) + chunk_bytes - 1) / chunk_bytes; }
  // The row of a token; of one beyond the block no row.
  uint64_t StoredRow(uint64_t token) const {
    return token < logical_to_stored.size() ? logical_to_stored[token] : token;
  }

  // Sets the order in which rows are stored; that of the text leaves both lists empty. False where it is no permutation
  // of the tokens.
  bool SetOrder(std::span<const uint32_t> order);
  // Takes the sums of the chunks of a payload, as it is stored.
  void TakeSums(const uint8_t* payload);
  bool HasSumsOf(const uint8_t* payload) const;

 private:
  // Calls `visit(chunk, bytes, how many)` for each chunk until it returns false.
  template <typename Visit>
  bool EachChunk(const uint8_t* payload, Visit visit) const;
};

// Writes header_bytes() bytes: the header and zeros behind it.
void WriteHeader(const BlockHeader& header, uint8_t* into);

// How many bytes the header that starts with this block has, in whole blocks; 0 where none starts.
uint64_t HeaderBytesAt(const uint8_t* block);

enum class Parsed : uint8_t { kGood, kNone, kOtherVersion };
// kNone: no header, or not as it was written.
Parsed ReadHeader(std::span<const uint8_t> bytes, BlockHeader& header, uint16_t& version);

void WriteIdentity(const Key& name_space, uint8_t* block);
Parsed ReadIdentity(const uint8_t* block, Key& name_space, uint16_t& version);

}  // namespace vkv::store

#endif  // VKV_STORE_BLOCK_HEADER_H_
