#include "store/store_format.h"

#include <algorithm>
#include <bit>

#include "crc32c.h"

namespace vkv::store {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little endian, and numbers are copied into them");

constexpr uint32_t Magic(const char (&text)[5]) {
  return static_cast<uint32_t>(text[0]) | static_cast<uint32_t>(text[1]) << 8 | static_cast<uint32_t>(text[2]) << 16 |
         static_cast<uint32_t>(text[3]) << 24;
}
constexpr uint32_t kRecordMagic = Magic("VKVR"), kSegmentMagic = Magic("VKVS"), kTrailerMagic = Magic("VKVF"),
                   kIdentityMagic = Magic("VKVI");

// Places within a record's header.
constexpr uint64_t kFixedBytes = 256, kSumAt = 252, kStripeBytes = 48, kRemovalBytes = 40;
enum At : uint64_t {
  kVersion = 4,
  kKind = 6,
  kFlags = 8,
  kHeaderBytes = 12,
  kEpoch = 16,
  kOffset = 32,
  kSequence = 40,
  kRecordBytes = 48,
  kPayloadStart = 56,
  kChunk = 60,
  kNamespace = 64,
  kKey = 96,
  kParent = 128,
  kPosition = 160,
  kPayloadBytes = 168,
  kRawBytes = 176,
  kTokens = 184,
  kExtra = 188,
  kStripes = 192,
  kSums = 196,
  kCodec = 200,
  kRemovals = 204,
  kLevel = 208,  // one byte; from the next one on up to the sum all are zeros
};
// Within the blocks of segments, trailers and identities: the same places as above where they are the same thing.
constexpr uint64_t kNumber = 32, kFooterOffset = 32, kFooterBytes = 40, kFooterSum = 48, kEntries = 52;

constexpr uint32_t kMustKnowFlags = 0xffff;  // a reader that does not know one of these must leave the record alone
constexpr uint32_t kReorderedFlag = 1;       // tokens are stored in an order of their own

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

constexpr uint64_t Aligned(uint64_t bytes, uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Where a stripe of so many bytes begins, behind one that ends at `end`.
constexpr uint64_t StripeStart(uint64_t end, uint64_t bytes, uint64_t chunk_bytes) {
  return Aligned(end, bytes >= chunk_bytes ? kBlockBytes : kStripeAlignment);
}

constexpr uint64_t ChunksOf(uint64_t bytes, uint64_t chunk_bytes) { return (bytes + chunk_bytes - 1) / chunk_bytes; }

// The sum over all but itself, which lies at kSumAt.
uint32_t HeaderSum(const uint8_t* header, uint64_t bytes) {
  const uint32_t before = Crc32c(header, kSumAt);
  return Crc32c(header + kFixedBytes, bytes - kFixedBytes, before);
}

void BeginBlock(uint8_t* block, uint32_t magic, const Epoch& epoch, const Key& name_space) {
  std::memset(block, 0, kBlockBytes);
  Put(block, 0, magic);
  Put(block, kVersion, kFormatVersion);
  Put(block, kEpoch, epoch);
  Put(block, kNamespace, name_space);
}

Parsed CheckBlock(const uint8_t* block, uint32_t magic) {
  if (Get<uint32_t>(block, 0) != magic || Get<uint32_t>(block, kSumAt) != HeaderSum(block, kBlockBytes))
    return Parsed::kNone;
  return Get<uint16_t>(block, kVersion) == kFormatVersion ? Parsed::kGood : Parsed::kLaterVersion;
}

}  // namespace

bool IsChunkBytes(uint64_t bytes) {
  return std::has_single_bit(bytes) && bytes >= kLeastChunkBytes && bytes <= kMostChunkBytes;
}

bool SetOrder(RecordHeader& header, std::span<const uint32_t> stored_to_logical) {
  const size_t tokens = header.tokens.size();
  if (stored_to_logical.size() != tokens) return false;
  for (const StripeEntry& stripe : header.stripes)
    if (stripe.bytes != 0 && header.RowBytes(stripe) == 0) return false;
  std::vector<uint32_t> inverse(tokens, UINT32_MAX);
  bool is_text_order = true;
  for (uint32_t row = 0; row < tokens; ++row) {
    const uint32_t token = stored_to_logical[row];
    if (token >= tokens || inverse[token] != UINT32_MAX) return false;
    inverse[token] = row;
    is_text_order = is_text_order && token == row;
  }
  if (is_text_order) inverse.clear();
  header.stored_to_logical.assign(stored_to_logical.begin(),
                                  is_text_order ? stored_to_logical.begin() : stored_to_logical.end());
  header.logical_to_stored = std::move(inverse);
  return true;
}

uint64_t RecordHeader::header_bytes() const {
  const uint64_t lists = kFixedBytes +
                         (tokens.size() + stored_to_logical.size() + logical_to_stored.size()) * sizeof(uint32_t) +
                         removals.size() * kRemovalBytes + extra.size();
  return Aligned(lists, 8) + stripes.size() * kStripeBytes + sums.size() * sizeof(uint32_t);
}

uint64_t RecordHeader::payload_bytes() const {
  return stripes.empty() ? 0 : stripes.back().offset + stripes.back().bytes;
}

void PlaceStripes(RecordHeader& header) {
  uint64_t end = 0, sums = 0;
  for (StripeEntry& stripe : header.stripes) {
    stripe.offset = StripeStart(end, stripe.bytes, header.chunk_bytes);
    stripe.first_sum = static_cast<uint32_t>(sums);
    end = stripe.offset + stripe.bytes;
    sums += ChunksOf(stripe.bytes, header.chunk_bytes);
  }
  header.sums.assign(sums, 0);
}

void WriteHeader(const RecordHeader& header, uint8_t* into) {
  const uint64_t bytes = header.header_bytes();
  std::memset(into, 0, bytes);
  Put(into, 0, kRecordMagic);
  Put(into, kVersion, kFormatVersion);
  Put(into, kKind, header.kind);
  Put(into, kFlags, header.stored_to_logical.empty() ? 0 : kReorderedFlag);
  Put(into, kHeaderBytes, static_cast<uint32_t>(bytes));
  Put(into, kEpoch, header.epoch);
  Put(into, kOffset, header.segment_offset);
  Put(into, kSequence, header.sequence);
  Put(into, kRecordBytes, header.record_bytes());
  Put(into, kPayloadStart, static_cast<uint32_t>(header.payload_start()));
  Put(into, kChunk, header.chunk_bytes);
  Put(into, kNamespace, header.name_space);
  Put(into, kKey, header.key);
  Put(into, kParent, header.parent);
  Put(into, kPosition, header.position);
  Put(into, kPayloadBytes, header.payload_bytes());
  Put(into, kRawBytes, header.payload_bytes());
  Put(into, kTokens, static_cast<uint32_t>(header.tokens.size()));
  Put(into, kExtra, static_cast<uint32_t>(header.extra.size()));
  Put(into, kStripes, static_cast<uint32_t>(header.stripes.size()));
  Put(into, kSums, static_cast<uint32_t>(header.sums.size()));
  Put(into, kRemovals, static_cast<uint32_t>(header.removals.size()));
  Put(into, kLevel, header.level);
  uint8_t* to = into + kFixedBytes;
  for (const auto* list : {&header.tokens, &header.stored_to_logical, &header.logical_to_stored}) {
    if (!list->empty()) std::memcpy(to, list->data(), list->size() * sizeof(uint32_t));
    to += list->size() * sizeof(uint32_t);
  }
  for (const Removal& removal : header.removals) {
    Put(to, 0, removal.key);
    Put(to, sizeof(Key), removal.sequence);
    to += kRemovalBytes;
  }
  if (!header.extra.empty()) std::memcpy(to, header.extra.data(), header.extra.size());
  to = into + Aligned(static_cast<uint64_t>(to - into) + header.extra.size(), 8);
  for (const StripeEntry& stripe : header.stripes) {
    Put(to, 0, stripe.id);
    Put(to, 8, stripe.offset);
    Put(to, 16, stripe.bytes);  // stored
    Put(to, 24, stripe.bytes);  // raw: the codec is none
    Put(to, 36, stripe.first_sum);
    to += kStripeBytes;
  }
  if (!header.sums.empty()) std::memcpy(to, header.sums.data(), header.sums.size() * sizeof(uint32_t));
  Put(into, kSumAt, HeaderSum(into, bytes));
}

uint64_t HeaderBytesAt(const uint8_t* block, uint64_t bytes) {
  if (bytes < kFixedBytes || Get<uint32_t>(block, 0) != kRecordMagic) return 0;
  const uint64_t header_bytes = Get<uint32_t>(block, kHeaderBytes);
  return header_bytes < kFixedBytes || header_bytes > kMaxHeaderBytes ? 0 : header_bytes;
}

Parsed ReadHeader(std::span<const uint8_t> bytes, const Epoch& epoch, const Key& name_space, uint64_t segment_offset,
                  RecordHeader& header) {
  const uint8_t* const from = bytes.data();
  const uint64_t header_bytes = HeaderBytesAt(from, bytes.size());
  if (header_bytes == 0 || header_bytes > bytes.size() || Get<uint32_t>(from, kSumAt) != HeaderSum(from, header_bytes))
    return Parsed::kNone;
  if (Get<Epoch>(from, kEpoch) != epoch || Get<uint64_t>(from, kOffset) != segment_offset ||
      Get<Key>(from, kNamespace) != name_space)
    return Parsed::kNone;
  if (Get<uint16_t>(from, kVersion) != kFormatVersion) return Parsed::kLaterVersion;
  const auto kind = Get<uint16_t>(from, kKind);
  const bool is_known =
      kind == static_cast<uint16_t>(RecordKind::kRecord) || kind == static_cast<uint16_t>(RecordKind::kRemovals);
  if (!is_known || (Get<uint32_t>(from, kFlags) & kMustKnowFlags & ~kReorderedFlag) != 0 ||
      Get<uint32_t>(from, kCodec) != 0 || !IsChunkBytes(Get<uint32_t>(from, kChunk)))
    return Parsed::kNone;

  const uint64_t tokens = Get<uint32_t>(from, kTokens), extra = Get<uint32_t>(from, kExtra),
                 stripes = Get<uint32_t>(from, kStripes), sums = Get<uint32_t>(from, kSums),
                 removals = Get<uint32_t>(from, kRemovals);
  // All below 2³² × 48, so that nothing overflows.
  const bool is_reordered = (Get<uint32_t>(from, kFlags) & kReorderedFlag) != 0;
  const uint64_t token_lists = tokens * sizeof(uint32_t) * (is_reordered ? 3 : 1);
  const uint64_t lists = kFixedBytes + token_lists + removals * kRemovalBytes + extra;
  if (Aligned(lists, 8) + stripes * kStripeBytes + sums * sizeof(uint32_t) != header_bytes) return Parsed::kNone;

  header = {};
  header.kind = static_cast<RecordKind>(kind);
  header.epoch = epoch;
  header.segment_offset = segment_offset;
  header.sequence = Get<uint64_t>(from, kSequence);
  header.name_space = name_space;
  header.key = Get<Key>(from, kKey);
  header.parent = Get<Key>(from, kParent);
  header.position = Get<uint64_t>(from, kPosition);
  header.chunk_bytes = Get<uint32_t>(from, kChunk);
  header.level = Get<uint8_t>(from, kLevel);
  const uint8_t* at = from + kFixedBytes;
  header.tokens.resize(tokens);
  if (tokens != 0) std::memcpy(header.tokens.data(), at, tokens * sizeof(uint32_t));
  at += tokens * sizeof(uint32_t);
  std::vector<uint32_t> order(is_reordered ? tokens : 0), inverse(order.size());
  for (auto* list : {&order, &inverse}) {
    if (!list->empty()) std::memcpy(list->data(), at, list->size() * sizeof(uint32_t));
    at += list->size() * sizeof(uint32_t);
  }
  header.removals.reserve(removals);
  for (uint64_t k = 0; k < removals; ++k, at += kRemovalBytes)
    header.removals.push_back({Get<Key>(at, 0), Get<uint64_t>(at, sizeof(Key))});
  header.extra.assign(at, at + extra);
  at = from + Aligned(lists, 8);
  // Stripes lie where PlaceStripes would put them, and nowhere else.
  uint64_t end = 0, chunks = 0;
  header.stripes.reserve(stripes);
  for (uint64_t k = 0; k < stripes; ++k, at += kStripeBytes) {
    const StripeEntry stripe = {Get<uint32_t>(at, 0), Get<uint64_t>(at, 8), Get<uint64_t>(at, 16),
                                Get<uint32_t>(at, 36)};
    if (Get<uint32_t>(at, 32) != 0 || Get<uint64_t>(at, 24) != stripe.bytes) return Parsed::kNone;  // a codec
    if (stripe.bytes > uint64_t{1} << 40 || stripe.offset != StripeStart(end, stripe.bytes, header.chunk_bytes) ||
        stripe.first_sum != chunks)
      return Parsed::kNone;
    end = stripe.offset + stripe.bytes;
    chunks += ChunksOf(stripe.bytes, header.chunk_bytes);
    header.stripes.push_back(stripe);
  }
  if (chunks != sums) return Parsed::kNone;
  // A mapping that is none, or that its other half contradicts, hides the record.
  if (is_reordered && (!SetOrder(header, order) || header.logical_to_stored != inverse || order.empty()))
    return Parsed::kNone;
  header.sums.resize(sums);
  if (sums != 0) std::memcpy(header.sums.data(), at, sums * sizeof(uint32_t));
  const bool adds_up = Get<uint64_t>(from, kRecordBytes) == header.record_bytes() &&
                       Get<uint64_t>(from, kPayloadBytes) == header.payload_bytes() &&
                       Get<uint32_t>(from, kPayloadStart) == header.payload_start();
  return adds_up ? Parsed::kGood : Parsed::kNone;
}

void WriteSegmentHeader(const SegmentHeader& header, uint8_t* block) {
  BeginBlock(block, kSegmentMagic, header.epoch, header.name_space);
  Put(block, kNumber, header.number);
  Put(block, kSumAt, HeaderSum(block, kBlockBytes));
}

Parsed ReadSegmentHeader(const uint8_t* block, SegmentHeader& header) {
  const Parsed parsed = CheckBlock(block, kSegmentMagic);
  if (parsed == Parsed::kGood)
    header = {Get<Epoch>(block, kEpoch), Get<Key>(block, kNamespace), Get<uint64_t>(block, kNumber)};
  return parsed;
}

void WriteTrailer(const Trailer& trailer, uint8_t* block) {
  BeginBlock(block, kTrailerMagic, trailer.epoch, trailer.name_space);
  Put(block, kFooterOffset, trailer.footer_offset);
  Put(block, kFooterBytes, trailer.footer_bytes);
  Put(block, kFooterSum, trailer.footer_sum);
  Put(block, kEntries, trailer.entries);
  Put(block, kSumAt, HeaderSum(block, kBlockBytes));
}

Parsed ReadTrailer(const uint8_t* block, Trailer& trailer) {
  const Parsed parsed = CheckBlock(block, kTrailerMagic);
  if (parsed == Parsed::kGood) {
    trailer = {Get<Epoch>(block, kEpoch),           Get<Key>(block, kNamespace),
               Get<uint64_t>(block, kFooterOffset), Get<uint64_t>(block, kFooterBytes),
               Get<uint32_t>(block, kFooterSum),    Get<uint32_t>(block, kEntries)};
  }
  return parsed;
}

uint64_t FooterEntryBytes(uint64_t header_bytes) { return 16 + Aligned(header_bytes, 8); }

void AddToFooter(std::vector<uint8_t>& footer, uint64_t segment_offset, std::span<const uint8_t> header) {
  const uint64_t at = footer.size();
  footer.resize(at + FooterEntryBytes(header.size()));
  Put(footer.data(), at, static_cast<uint64_t>(header.size()));
  Put(footer.data(), at + 8, segment_offset);
  std::memcpy(footer.data() + at + 16, header.data(), header.size());
}

bool ReadFooter(std::span<const uint8_t> footer,
                const std::function<void(uint64_t offset, std::span<const uint8_t> header)>& visit) {
  while (!footer.empty()) {
    if (footer.size() < 16) return false;
    const auto bytes = Get<uint64_t>(footer.data(), 0);
    if (bytes > kMaxHeaderBytes || FooterEntryBytes(bytes) > footer.size()) return false;
    visit(Get<uint64_t>(footer.data(), 8), footer.subspan(16, bytes));
    footer = footer.subspan(FooterEntryBytes(bytes));
  }
  return true;
}

void WriteIdentity(const Key& name_space, uint8_t* block) {
  BeginBlock(block, kIdentityMagic, {}, name_space);
  Put(block, kSumAt, HeaderSum(block, kBlockBytes));
}

Parsed ReadIdentity(const uint8_t* block, Key& name_space, uint16_t& version) {
  const Parsed parsed = CheckBlock(block, kIdentityMagic);
  version = Get<uint16_t>(block, kVersion);
  if (parsed == Parsed::kGood) name_space = Get<Key>(block, kNamespace);
  return parsed;
}

}  // namespace vkv::store
