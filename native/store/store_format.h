// The bytes on disk, all little endian: docs/store-format.md describes them. Writes and reads headers of records, of
// segments and their trailers, and of the store itself. A reader trusts no field before the sum over all of them holds,
// and checks every bound then too. Owns nothing; no I/O. Threads: any.
#ifndef VKV_STORE_STORE_FORMAT_H_
#define VKV_STORE_STORE_FORMAT_H_

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "store/block_file.h"

namespace vkv::store {

inline constexpr uint16_t kFormatVersion = 1;
// A chunk of a stripe has a sum of its own. Each record says how many bytes its chunks have: a power of two.
inline constexpr uint32_t kChunkBytes = 64 * 1024;
inline constexpr uint32_t kLeastChunkBytes = kBlockBytes, kMostChunkBytes = kChunkBytes;
inline constexpr uint64_t kStripeAlignment =
    64;  // of a stripe within the payload; one of a chunk or more begins at a block
inline constexpr uint64_t kMaxHeaderBytes = 4 << 20;  // of a record's header
inline constexpr uint64_t kMaxExtraBytes = 256 << 10;
inline constexpr uint64_t kMaxStripes = 16384;

template <size_t kBytes>
struct Digest {
  std::array<uint8_t, kBytes> bytes{};

  bool operator==(const Digest&) const = default;
};
using Key = Digest<32>;
using Epoch = Digest<16>;

struct KeyHash {
  size_t operator()(const Key& key) const {
    size_t word;
    std::memcpy(&word, key.bytes.data(), sizeof word);
    return std::hash<size_t>()(word);
  }
};

enum class RecordKind : uint16_t { kRecord = 1, kRemovals = 2 };

struct StripeEntry {
  uint32_t id = 0;
  uint64_t offset = 0;  // within the payload
  uint64_t bytes = 0;
  uint32_t first_sum = 0;  // of its chunks; the others follow
};

struct Removal {
  Key key;
  uint64_t sequence = 0;  // kills every record of the key with a smaller one
};

// A record's header, or that of a list of removals.
struct RecordHeader {
  RecordKind kind = RecordKind::kRecord;
  Epoch epoch;
  uint64_t segment_offset = 0;
  uint64_t sequence = 0;
  Key name_space;
  Key key;
  Key parent;
  uint64_t position = 0;
  uint32_t chunk_bytes = kChunkBytes;
  uint8_t level = 0;  // the caller's hint of how much the record matters; the store only keeps it
  std::vector<uint32_t> tokens;
  // Where tokens are not stored in their order: of each stored row which token it is, and of each token its row. Empty:
  // the order of the text. Each stripe then has as many bytes for each token.
  std::vector<uint32_t> stored_to_logical, logical_to_stored;
  std::vector<uint8_t> extra;
  std::vector<StripeEntry> stripes;
  std::vector<uint32_t> sums;
  std::vector<Removal> removals;

  // All from here on follow from the above; Parse checks that they do.
  uint64_t header_bytes() const;  // as far as the sum goes
  uint64_t payload_start() const { return ToBlocks(header_bytes()); }
  uint64_t payload_bytes() const;
  uint64_t record_bytes() const { return ToBlocks(payload_start() + payload_bytes()); }
  // The row of a token; of one beyond the record no row.
  uint64_t StoredRow(uint64_t token) const {
    return token < logical_to_stored.size() ? logical_to_stored[token] : token;
  }
  // Bytes that a stripe has for each token; 0 where it has no tokens, or not as many bytes for each.
  uint64_t RowBytes(const StripeEntry& stripe) const {
    return tokens.empty() || stripe.bytes % tokens.size() != 0 ? 0 : stripe.bytes / tokens.size();
  }
};

bool IsChunkBytes(uint64_t bytes);

// Sets the order in which rows are stored; the order of the text leaves both lists empty. False where
// `stored_to_logical` is no permutation of the tokens, or a stripe is not divided by them.
bool SetOrder(RecordHeader& header, std::span<const uint32_t> stored_to_logical);

// Places the stripes one behind the other and makes room for their sums.
void PlaceStripes(RecordHeader& header);

// Writes header_bytes() bytes.
void WriteHeader(const RecordHeader& header, uint8_t* into);

// How many bytes the header that starts here says it has; 0 where none starts. Looks at the first block only.
uint64_t HeaderBytesAt(const uint8_t* block, uint64_t bytes);

enum class Parsed : uint8_t { kGood, kNone, kLaterVersion };
// Reads a header that must be where it says it is. kNone: no header, or not as it was written.
Parsed ReadHeader(std::span<const uint8_t> bytes, const Epoch& epoch, const Key& name_space, uint64_t segment_offset,
                  RecordHeader& header);

// The first block of a segment.
struct SegmentHeader {
  Epoch epoch;
  Key name_space;
  uint64_t number = 0;
};
void WriteSegmentHeader(const SegmentHeader& header, uint8_t* block);
Parsed ReadSegmentHeader(const uint8_t* block, SegmentHeader& header);

// The last block of a sealed segment: where its footer is, a list of all headers.
struct Trailer {
  Epoch epoch;
  Key name_space;
  uint64_t footer_offset = 0;
  uint64_t footer_bytes = 0;
  uint32_t footer_sum = 0;
  uint32_t entries = 0;
};
void WriteTrailer(const Trailer& trailer, uint8_t* block);
Parsed ReadTrailer(const uint8_t* block, Trailer& trailer);

// Puts a header into a footer; `header` is what WriteHeader wrote for this offset.
void AddToFooter(std::vector<uint8_t>& footer, uint64_t segment_offset, std::span<const uint8_t> header);
uint64_t FooterEntryBytes(uint64_t header_bytes);
// Calls `visit` for each entry. False where the footer is malformed; what was visited before that was well formed.
bool ReadFooter(std::span<const uint8_t> footer,
                const std::function<void(uint64_t offset, std::span<const uint8_t> header)>& visit);

// The file that says whose folder it is.
void WriteIdentity(const Key& name_space, uint8_t* block);
Parsed ReadIdentity(const uint8_t* block, Key& name_space, uint16_t& version);

}  // namespace vkv::store

#endif  // VKV_STORE_STORE_FORMAT_H_
