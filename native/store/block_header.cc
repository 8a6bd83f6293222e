#include "store/block_header.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "crc32c.h"

namespace vkv::store {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little endian, and numbers are copied into them");

constexpr uint32_t Magic(const char (&text)[5]) {
  return static_cast<uint32_t>(text[0]) | static_cast<uint32_t>(text[1]) << 8 | static_cast<uint32_t>(text[2]) << 16 |
         static_cast<uint32_t>(text[3]) << 24;
}
constexpr uint32_t kBlockMagic = Magic("VKVB"), kIdentityMagic = Magic("VKVI");

// Places within a header; lib/store/block-header.ts reads the same. An identity has the first, the namespace and the
// sum at the same places.
constexpr uint64_t kFixedBytes = 256, kSumAt = 252;
enum At : uint64_t {
  kVersion = 4,
  kFlags = 8,
  kUsedBytes = 12,
  kChunk = 16,
  kTokens = 20,
  kStripes = 24,
  kSums = 28,
  kNotes = 32,
  kLevel = 36,  // one byte
  kPosition = 40,
  kPayloadBytes = 48,
  kNamespace = 64,
  kKey = 96,
  kParent = 128,  // from its end on up to the sum all are zeros
};
constexpr uint32_t kReorderedFlag = 1;

template <typename T>
void Put(uint8_t* into, uint64_t at, const T& value) {
  std::memcpy(into + at, &value, sizeof value);
}
template <typename T>
T Get(const uint8_t* from, uint64_t at) {
  T value;
  std::memcpy(&value, from + at, sizeof value);
  return value;
}

// The sum over all but itself, which lies at kSumAt.
uint32_t SumOf(const uint8_t* header, uint64_t bytes) {
  const uint32_t before = Crc32c(header, kSumAt);
  return Crc32c(header + kFixedBytes, bytes - kFixedBytes, before);
}

uint8_t* PutList(uint8_t* to, const std::vector<uint32_t>& list) {
  if (!list.empty()) std::memcpy(to, list.data(), list.size() * sizeof(uint32_t));
  return to + list.size() * sizeof(uint32_t);
}

const uint8_t* TakeList(const uint8_t* from, uint64_t count, std::vector<uint32_t>& list) {
  list.resize(count);
  if (count != 0) std::memcpy(list.data(), from, count * sizeof(uint32_t));
  return from + count * sizeof(uint32_t);
}

}  // namespace

std::string Key::Hex() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const uint8_t byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

bool Key::FromHex(std::string_view hex, Key& key) {
  if (hex.size() != 2 * key.bytes.size()) return false;
  for (size_t k = 0; k < hex.size(); ++k) {
    const char digit = hex[k];
    const bool is_number = digit >= '0' && digit <= '9';
    if (!is_number && !(digit >= 'a' && digit <= 'f')) return false;
    const auto value = static_cast<uint8_t>(is_number ? digit - '0' : digit - 'a' + 10);
    key.bytes[k / 2] = static_cast<uint8_t>(k % 2 == 0 ? value << 4 : key.bytes[k / 2] | value);
  }
  return true;
}

bool IsChunkBytes(uint64_t bytes) {
  return std::has_single_bit(bytes) && bytes >= kLeastChunkBytes && bytes <= kMostChunkBytes;
}

uint64_t BlockHeader::used_bytes() const {
  const size_t numbers =
      tokens.size() + row_bytes.size() + stripe_sums.size() + chunk_sums.size() + stored_to_logical.size();
  return kFixedBytes + numbers * sizeof(uint32_t) + notes.size();
}

uint64_t BlockHeader::payload_bytes() const {
  uint64_t bytes = 0;
  for (size_t stripe = 0; stripe < row_bytes.size(); ++stripe) bytes += stripe_bytes(stripe);
  return bytes;
}

bool BlockHeader::SetOrder(std::span<const uint32_t> order) {
  if (order.size() != tokens.size()) return false;
  std::vector<uint32_t> inverse(order.size(), UINT32_MAX);
  bool is_text_order = true;
  for (uint32_t row = 0; row < order.size(); ++row) {
    if (order[row] >= order.size() || inverse[order[row]] != UINT32_MAX) return false;
    inverse[order[row]] = row;
    is_text_order = is_text_order && order[row] == row;
  }
  if (is_text_order) {
    stored_to_logical.clear();
    logical_to_stored.clear();
  } else {
    stored_to_logical.assign(order.begin(), order.end());
    logical_to_stored = std::move(inverse);
  }
  return true;
}

template <typename Visit>
bool BlockHeader::EachChunk(const uint8_t* payload, Visit visit) const {
  size_t chunk = 0;
  for (size_t stripe = 0; stripe < row_bytes.size(); ++stripe) {
    for (uint64_t left = stripe_bytes(stripe); left > 0; ++chunk) {
      const uint64_t bytes = std::min<uint64_t>(left, chunk_bytes);
      if (!visit(chunk, payload, bytes)) return false;
      payload += bytes;
      left -= bytes;
    }
  }
  return true;
}

void BlockHeader::TakeSums(const uint8_t* payload) {
  size_t chunks = 0;
  for (size_t stripe = 0; stripe < row_bytes.size(); ++stripe) chunks += chunks_of(stripe);
  chunk_sums.resize(chunks);
  (void)EachChunk(payload, [this](size_t chunk, const uint8_t* bytes, uint64_t count) {
    chunk_sums[chunk] = Crc32c(bytes, count);
    return true;
  });
}

bool BlockHeader::HasSumsOf(const uint8_t* payload) const {
  return EachChunk(payload, [this](size_t chunk, const uint8_t* bytes, uint64_t count) {
    return chunk_sums[chunk] == Crc32c(bytes, count);
  });
}

void WriteHeader(const BlockHeader& header, uint8_t* into) {
  const uint64_t used = header.used_bytes();
  std::memset(into, 0, header.header_bytes());
  Put(into, 0, kBlockMagic);
  Put(into, kVersion, kFormatVersion);
  Put(into, kFlags, header.stored_to_logical.empty() ? 0 : kReorderedFlag);
  Put(into, kUsedBytes, static_cast<uint32_t>(used));
  Put(into, kChunk, header.chunk_bytes);
  Put(into, kTokens, static_cast<uint32_t>(header.tokens.size()));
  Put(into, kStripes, static_cast<uint32_t>(header.row_bytes.size()));
  Put(into, kSums, static_cast<uint32_t>(header.chunk_sums.size()));
  Put(into, kNotes, static_cast<uint32_t>(header.notes.size()));
  Put(into, kLevel, header.level);
  Put(into, kPosition, header.position);
  Put(into, kPayloadBytes, header.payload_bytes());
  Put(into, kNamespace, header.name_space);
  Put(into, kKey, header.key);
  Put(into, kParent, header.parent);
  uint8_t* to = into + kFixedBytes;
  for (const auto* list :
       {&header.tokens, &header.row_bytes, &header.stripe_sums, &header.chunk_sums, &header.stored_to_logical})
    to = PutList(to, *list);
  if (!header.notes.empty()) std::memcpy(to, header.notes.data(), header.notes.size());
  Put(into, kSumAt, SumOf(into, used));
}

uint64_t HeaderBytesAt(const uint8_t* block) {
  const uint64_t used = Get<uint32_t>(block, kUsedBytes);
  if (Get<uint32_t>(block, 0) != kBlockMagic || used < kFixedBytes || used > kMostHeaderBytes) return 0;
  return ToBlocks(used);
}

Parsed ReadHeader(std::span<const uint8_t> bytes, BlockHeader& header, uint16_t& version) {
  const uint8_t* const from = bytes.data();
  if (bytes.size() < kBlockBytes || HeaderBytesAt(from) == 0 || HeaderBytesAt(from) > bytes.size())
    return Parsed::kNone;
  const uint64_t used = Get<uint32_t>(from, kUsedBytes);
  if (Get<uint32_t>(from, kSumAt) != SumOf(from, used)) return Parsed::kNone;
  version = Get<uint16_t>(from, kVersion);
  if (version != kFormatVersion) return Parsed::kOtherVersion;
  const uint64_t tokens = Get<uint32_t>(from, kTokens), stripes = Get<uint32_t>(from, kStripes),
                 sums = Get<uint32_t>(from, kSums), notes = Get<uint32_t>(from, kNotes);
  const uint32_t flags = Get<uint32_t>(from, kFlags);
  const uint64_t ordered = flags == kReorderedFlag ? tokens : 0;
  // All counts are below 2³², so that nothing overflows.
  if ((flags & ~kReorderedFlag) != 0 || !IsChunkBytes(Get<uint32_t>(from, kChunk)) ||
      kFixedBytes + sizeof(uint32_t) * (tokens + 2 * stripes + sums + ordered) + notes != used)
    return Parsed::kNone;

  header = {};
  header.name_space = Get<Key>(from, kNamespace);
  header.key = Get<Key>(from, kKey);
  header.parent = Get<Key>(from, kParent);
  header.position = Get<uint64_t>(from, kPosition);
  header.chunk_bytes = Get<uint32_t>(from, kChunk);
  header.level = Get<uint8_t>(from, kLevel);
  std::vector<uint32_t> order;
  const uint8_t* at = TakeList(from + kFixedBytes, tokens, header.tokens);
  at = TakeList(at, stripes, header.row_bytes);
  at = TakeList(at, stripes, header.stripe_sums);
  at = TakeList(at, sums, header.chunk_sums);
  at = TakeList(at, ordered, order);
  header.notes.assign(at, at + notes);
  uint64_t payload = 0, chunks = 0;
  for (size_t stripe = 0; stripe < stripes; ++stripe) {
    payload += header.stripe_bytes(stripe);
    chunks += header.chunks_of(stripe);
    if (payload > kMostPayloadBytes) return Parsed::kNone;
  }
  if (payload != Get<uint64_t>(from, kPayloadBytes) || chunks != sums) return Parsed::kNone;
  // An order that is none, or that of the text, hides the block.
  if (flags == kReorderedFlag && (!header.SetOrder(order) || header.stored_to_logical.empty())) return Parsed::kNone;
  return Parsed::kGood;
}

void WriteIdentity(const Key& name_space, uint8_t* block) {
  std::memset(block, 0, kBlockBytes);
  Put(block, 0, kIdentityMagic);
  Put(block, kVersion, kFormatVersion);
  Put(block, kNamespace, name_space);
  Put(block, kSumAt, SumOf(block, kBlockBytes));
}

Parsed ReadIdentity(const uint8_t* block, Key& name_space, uint16_t& version) {
  if (Get<uint32_t>(block, 0) != kIdentityMagic || Get<uint32_t>(block, kSumAt) != SumOf(block, kBlockBytes))
    return Parsed::kNone;
  version = Get<uint16_t>(block, kVersion);
  name_space = Get<Key>(block, kNamespace);
  return version == kFormatVersion ? Parsed::kGood : Parsed::kOtherVersion;
}

}  // namespace vkv::store
