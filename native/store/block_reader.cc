#include "store/block_reader.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "crc32c.h"

namespace vkv::store {
namespace {

// Puts the rows of a stored payload into the order of the text.
void Unorder(const BlockHeader& header, const uint8_t* stored, uint8_t* payload) {
  for (const uint32_t row_bytes : header.row_bytes) {
    for (size_t row = 0; row < header.stored_to_logical.size(); ++row)
      std::memcpy(payload + uint64_t{header.stored_to_logical[row]} * row_bytes, stored + row * row_bytes, row_bytes);
    stored += uint64_t{row_bytes} * header.tokens.size();
    payload += uint64_t{row_bytes} * header.tokens.size();
  }
}

}  // namespace

ReadState BlockReader::OpenFile(const std::string& name, std::unique_ptr<BlockFile>& file, bool is_cached) {
  const std::string path = context_.PathOf(name);
  const auto open = [&] {
    bool direct = false;
    return is_cached ? BlockFile::Open(context_.calls, path, O_RDONLY, direct, file)
                     : context_.Open(path, O_RDONLY, file);
  };
  int error = open();
  if (open_blocks_.Relieve(error)) error = open();
  if (context_.IsDeleted(error)) return ReadState::kAbsent;
  if (error == 0) return ReadState::kGood;
  context_.Failed("open", error, context_.counters.failed_reads);
  return ReadState::kIo;
}

ReadState BlockReader::ReadPart(const BlockFile& file, std::span<const iovec> parts, uint64_t offset, uint64_t& read) {
  const int error = file.Read(parts, offset, read);
  if (error == 0) return ReadState::kGood;
  context_.Failed("preadv", error, context_.counters.failed_reads);
  return ReadState::kIo;
}

ReadState BlockReader::ReadHeaderInto(const BlockFile& file, AlignedBuffer& scratch, BlockHeader& header,
                                      uint64_t& read, uint16_t& version) {
  read = 0;
  const iovec first = {scratch.data(), kBlockBytes};
  if (const ReadState state = ReadPart(file, {&first, 1}, 0, read); state != ReadState::kGood) return state;
  const uint64_t bytes = read < kBlockBytes ? 0 : HeaderBytesAt(scratch.data());
  if (bytes > kBlockBytes) {
    const iovec rest = {scratch.data() + kBlockBytes, bytes - kBlockBytes};
    uint64_t more = 0;
    if (const ReadState state = ReadPart(file, {&rest, 1}, kBlockBytes, more); state != ReadState::kGood) return state;
    read += more;
  }
  if (bytes == 0 || read < bytes) return ReadState::kCorrupt;
  const Parsed parsed = ReadHeader({scratch.data(), bytes}, header, version);
  if (parsed == Parsed::kOtherVersion) return ReadState::kAbsent;
  return parsed == Parsed::kGood ? ReadState::kGood : ReadState::kCorrupt;
}

std::unique_ptr<BlockFile> BlockReader::OpenAhead(const Key& key) {
  std::unique_ptr<BlockFile> file;
  if (OpenFile(BlockName(key), file, /*is_cached=*/true) == ReadState::kGood) file->ReadAhead(kBlockBytes);
  return file;
}

ReadState BlockReader::ReadHeaderOf(const Key& key, const BlockFile* file, FoundHeader& found, AlignedBuffer& scratch) {
  if (file == nullptr) {
    (void)context_.calls.SizeOf(context_.PathOf(BlockName(key)), found.file_bytes);  // it takes its room all the same
    return ReadState::kIo;                                                           // nothing else takes files away
  }
  if (const int error = file->Size(found.file_bytes, &found.modified_ms)) {
    context_.Failed("fstat", error, context_.counters.failed_reads);
    return ReadState::kIo;
  }
  uint64_t read = 0;
  const ReadState state = ReadHeaderInto(*file, scratch, found.header, read, found.version);
  if (state != ReadState::kGood) return state;
  const bool is_whole = found.header.file_bytes() == found.file_bytes;
  return is_whole && IsBlock(found.header, key) ? ReadState::kGood : ReadState::kCorrupt;
}

ReadState BlockReader::ReadWhole(const Key& key, bool checks, WholeBlock& block) {
  std::unique_ptr<BlockFile> file;
  if (const ReadState opened = OpenFile(BlockName(key), file); opened != ReadState::kGood) return opened;
  uint64_t size = 0, read = 0;
  if (const int error = file->Size(size)) {
    context_.Failed("fstat", error, context_.counters.failed_reads);
    return ReadState::kIo;
  }
  if (size < kBlockBytes || size > kMostHeaderBytes + kMostPayloadBytes) return Corrupt();
  block.file = AlignedBuffer(size);
  if (block.file.bytes() == 0) return ReadState::kIo;
  const iovec all = {block.file.data(), block.file.bytes()};
  if (const ReadState state = ReadPart(*file, {&all, 1}, 0, read); state != ReadState::kGood) return state;
  uint16_t version = 0;
  const bool is_it = read == size && ReadHeader({block.file.data(), size}, block.header, version) == Parsed::kGood &&
                     IsBlock(block.header, key) && block.header.file_bytes() == size;
  return is_it && (!checks || block.header.HasSumsOf(block.payload())) ? ReadState::kGood : Corrupt();
}

ReadState BlockReader::Get(const Key& key, uint64_t header_bytes, std::span<uint8_t> payload,
                           std::vector<uint32_t>& stripe_sums, AlignedBuffer& scratch) {
  std::unique_ptr<BlockFile> file;
  if (const ReadState opened = OpenFile(BlockName(key), file); opened != ReadState::kGood) return opened;
  // One call reads the header and the payload; what of it is less than a block at the end goes through the scratch
  // buffer.
  const uint64_t whole = payload.size() / kBlockBytes * kBlockBytes, rest = payload.size() - whole;
  const bool is_straight =
      header_bytes + kBlockBytes <= scratch.bytes() && (!file->is_direct() || IsWholeBlocks(payload.data(), whole));
  BlockHeader header;
  if (is_straight) {
    uint8_t* const tail = scratch.data() + scratch.bytes() - kBlockBytes;
    const iovec parts[] = {
        {scratch.data(), header_bytes}, {payload.data(), whole}, {tail, rest == 0 ? 0 : kBlockBytes}};
    uint64_t read = 0;
    uint16_t version = 0;
    if (const ReadState state = ReadPart(*file, parts, 0, read); state != ReadState::kGood) return state;
    if (read < header_bytes + payload.size() ||
        ReadHeader({scratch.data(), header_bytes}, header, version) == Parsed::kNone)
      return ReadByItself(key, payload, stripe_sums);
    if (!IsBlock(header, key)) return Corrupt();
    if (header.header_bytes() == header_bytes && header.payload_bytes() == payload.size() &&
        header.stored_to_logical.empty()) {
      std::memcpy(payload.data() + whole, tail, rest);
      stripe_sums = std::move(header.stripe_sums);
      context_.counters.get_bytes += payload.size();
      return ReadState::kGood;
    }
  }
  return ReadByItself(key, payload, stripe_sums);
}

ReadState BlockReader::ReadByItself(const Key& key, std::span<uint8_t> payload, std::vector<uint32_t>& stripe_sums) {
  WholeBlock block;
  if (const ReadState state = ReadWhole(key, /*checks=*/false, block); state != ReadState::kGood) return state;
  if (block.header.payload_bytes() != payload.size()) return Corrupt();
  if (block.header.stored_to_logical.empty())
    std::memcpy(payload.data(), block.payload(), payload.size());
  else
    Unorder(block.header, block.payload(), payload.data());
  stripe_sums = std::move(block.header.stripe_sums);
  context_.counters.get_bytes += payload.size();
  return ReadState::kGood;
}

ReadState BlockReader::OpenForTokens(const Key& key, ReadCosts& costs, AlignedBuffer& scratch,
                                     std::shared_ptr<const OpenBlock>& block) {
  const std::string name = BlockName(key);
  uint64_t drops = 0, read = 0;
  uint16_t version = 0;
  block = open_blocks_.Find(name, drops);
  if (block != nullptr) return ReadState::kGood;
  auto opened = std::make_shared<OpenBlock>();
  if (const ReadState state = OpenFile(name, opened->file); state != ReadState::kGood) return state;
  const ReadState state = ReadHeaderInto(*opened->file, scratch, opened->header, read, version);
  costs.bytes += read;
  if (state == ReadState::kIo) return state;
  if (state != ReadState::kGood || !IsBlock(opened->header, key)) return Corrupt();
  block = opened;
  open_blocks_.Keep(name, std::move(opened), drops);
  return ReadState::kGood;
}

// What is to be read of a block's file: chunks in ascending order, and what of each goes where.
struct BlockReader::TokenPlan {
  struct Copy {
    uint32_t skip, take;
    uint8_t* target;
  };
  struct Chunk {
    uint64_t file_offset;
    uint32_t bytes, sum;
    size_t first_copy, end_copy;
  };

  std::vector<Copy> copies;
  std::vector<Chunk> chunks;

  // False where the requests are not of tokens and stripes that the block has, or do not fill the target.
  bool Make(const BlockHeader& header, const TokenRequests& requests) {
    std::vector<uint64_t> start(header.row_bytes.size()), first_sum(header.row_bytes.size());
    uint64_t payload = header.header_bytes(), sums = 0;
    for (size_t stripe = 0; stripe < start.size(); ++stripe) {
      start[stripe] = payload;
      first_sum[stripe] = sums;
      payload += header.stripe_bytes(stripe);
      sums += header.chunks_of(stripe);
    }
    struct Row {
      uint64_t from;  // within the stripe
      uint8_t* target;
    };
    std::vector<Row> rows;
    uint8_t* target = requests.target.data();
    uint64_t left = requests.target.size();
    size_t token = 0;
    for (const TokenRequests::Part& part : requests.parts) {
      if (part.stripe >= start.size()) return false;
      const uint64_t row_bytes = header.row_bytes[part.stripe];
      rows.clear();
      for (; token < part.end; ++token) {
        if (requests.tokens[token] >= header.tokens.size() || left < row_bytes) return false;
        rows.push_back({header.StoredRow(requests.tokens[token]) * row_bytes, target});
        target += row_bytes;
        left -= row_bytes;
      }
      std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.from < b.from; });
      const uint64_t stripe_bytes = header.stripe_bytes(part.stripe);
      const size_t first = chunks.size();
      for (const Row& row : rows) {
        for (uint64_t at = row.from, end = row.from + row_bytes; at < end;) {
          const uint64_t number = at / header.chunk_bytes, from = number * header.chunk_bytes;
          const uint64_t bytes = std::min<uint64_t>(header.chunk_bytes, stripe_bytes - from);
          const uint64_t take = std::min(from + bytes, end) - at;
          if (chunks.size() == first || chunks.back().file_offset != start[part.stripe] + from)
            chunks.push_back({start[part.stripe] + from, static_cast<uint32_t>(bytes),
                              header.chunk_sums[first_sum[part.stripe] + number], copies.size(), copies.size()});
          copies.push_back(
              {static_cast<uint32_t>(at - from), static_cast<uint32_t>(take), row.target + (at - row.from)});
          chunks.back().end_copy = copies.size();
          at += take;
        }
      }
    }
    std::stable_sort(chunks.begin(), chunks.end(),
                     [](const Chunk& a, const Chunk& b) { return a.file_offset < b.file_offset; });
    return left == 0;
  }

  // Checks a chunk that lies at `data` and copies what is wanted of it.
  bool Take(const Chunk& chunk, const uint8_t* data) const {
    if (Crc32c(data, chunk.bytes) != chunk.sum) return false;
    for (size_t k = chunk.first_copy; k < chunk.end_copy; ++k)
      std::memcpy(copies[k].target, data + copies[k].skip, copies[k].take);
    return true;
  }
};

ReadState BlockReader::GetTokens(const Key& key, const TokenRequests& requests, ReadCosts& costs,
                                 AlignedBuffer& scratch) {
  std::shared_ptr<const OpenBlock> block;
  if (const ReadState state = OpenForTokens(key, costs, scratch, block); state != ReadState::kGood) return state;
  TokenPlan plan;
  if (!plan.Make(block->header, requests)) return ReadState::kAbsent;
  costs.chunks = plan.chunks.size();
  for (size_t first = 0; first < plan.chunks.size();) {
    // Chunks whose blocks touch are read with one call, as long as the scratch buffer holds them.
    const uint64_t from = plan.chunks[first].file_offset / kBlockBytes * kBlockBytes;
    uint64_t end = from;
    size_t last = first;
    for (; last < plan.chunks.size(); ++last) {
      const TokenPlan::Chunk& chunk = plan.chunks[last];
      const uint64_t chunk_end = std::max(end, ToBlocks(chunk.file_offset + chunk.bytes));
      if (last > first && (chunk.file_offset / kBlockBytes * kBlockBytes > end || chunk_end - from > scratch.bytes()))
        break;
      end = chunk_end;
    }
    uint64_t read = 0;
    const iovec part = {scratch.data(), end - from};
    const ReadState state = ReadPart(*block->file, {&part, 1}, from, read);
    costs.bytes += read;
    if (state != ReadState::kGood) return state;
    for (; first < last; ++first) {
      const TokenPlan::Chunk& chunk = plan.chunks[first];
      const uint64_t at = chunk.file_offset - from;
      if (at + chunk.bytes > read || !plan.Take(chunk, scratch.data() + at)) return Corrupt();
    }
  }
  context_.counters.get_bytes += requests.target.size();
  return ReadState::kGood;
}

}  // namespace vkv::store
