// A listing of records, as lib/store/record-listing.ts reads it. Of each: bytes of all that follows (u32), counts of
// tokens, extra bytes and stripes (u32 each), position and stored bytes (f64 each), bytes of a chunk (u32), its
// flags (u32: 1 where its tokens are reordered, its level from bit 8 on), key, parent, (id u32, 0 u32, bytes
// f64) of each stripe, tokens, extra, and zeros up to a multiple of 8.
#include <errno.h>

#include <algorithm>

#include "host/system_calls.h"
#include "store/disk_store.h"

namespace vkv::store {
namespace {

template <typename T>
void Append(std::vector<uint8_t>& to, const T* from, size_t count) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(from);
  to.insert(to.end(), bytes, bytes + count * sizeof(T));
}

void AddToListing(std::vector<uint8_t>& listing, const RecordHeader& header) {
  const size_t at = listing.size();
  const uint32_t counts[4] = {0, static_cast<uint32_t>(header.tokens.size()),
                              static_cast<uint32_t>(header.extra.size()), static_cast<uint32_t>(header.stripes.size())};
  const double numbers[2] = {static_cast<double>(header.position), static_cast<double>(header.record_bytes())};
  Append(listing, counts, 4);
  const uint32_t flags = (header.stored_to_logical.empty() ? 0u : 1u) | uint32_t{header.level} << 8;
  const uint32_t kinds[2] = {header.chunk_bytes, flags};
  Append(listing, numbers, 2);
  Append(listing, kinds, 2);
  Append(listing, header.key.bytes.data(), header.key.bytes.size());
  Append(listing, header.parent.bytes.data(), header.parent.bytes.size());
  for (const StripeEntry& stripe : header.stripes) {
    const uint32_t id[2] = {stripe.id, 0};
    const auto bytes = static_cast<double>(stripe.bytes);
    Append(listing, id, 2);
    Append(listing, &bytes, 1);
  }
  Append(listing, header.tokens.data(), header.tokens.size());
  Append(listing, header.extra.data(), header.extra.size());
  listing.resize((listing.size() + 7) / 8 * 8);
  const auto bytes = static_cast<uint32_t>(listing.size() - at);
  std::memcpy(listing.data() + at, &bytes, sizeof bytes);
}

}  // namespace

Status ListRecords(StoreContext& context, Segment& segment, std::vector<uint8_t>& listing) {
  std::vector<uint8_t> footer;
  uint64_t footer_offset = 0, footer_bytes = 0;
  {
    std::lock_guard lock(context.index.mutex());
    footer = segment.footer;
    footer_offset = segment.footer_offset;
    footer_bytes = footer.empty() ? segment.footer_bytes : 0;
  }
  if (footer_bytes > 0) {
    AlignedBuffer buffer(footer_bytes);
    uint64_t read = 0;
    const int error =
        buffer.bytes() == 0 ? ENOMEM : segment.file->Read(buffer.data(), buffer.bytes(), footer_offset, read);
    if (error != 0)
      return host::SystemError(Code::kStoreFailed, "pread",
                               context.Failed("pread", error, context.counters.failed_reads));
    footer.assign(buffer.data(), buffer.data() + std::min(read, footer_bytes));
  }
  (void)ReadFooter(footer, [&](uint64_t offset, std::span<const uint8_t> bytes) {
    RecordHeader header;
    RecordPlace place;
    if (ReadHeader(bytes, segment.epoch, context.options.name_space, offset, header) != Parsed::kGood) return;
    if (header.kind != RecordKind::kRecord || !context.index.Find(header.key, place)) return;
    if (place.segment.get() != &segment || place.offset != offset) return;
    header.level = context.index.LevelOf(place);
    AddToListing(listing, header);
  });
  return Ok();
}

}  // namespace vkv::store
