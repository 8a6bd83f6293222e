// BlockReader: reads blocks from their files: whole payloads, rows of single tokens, and all of a block to check it.
// Each read is one thread's. Threads: any, each with a scratch buffer of its own.
#ifndef VKV_STORE_BLOCK_READER_H_
#define VKV_STORE_BLOCK_READER_H_

#include <span>
#include <vector>

#include "store/open_blocks.h"
#include "store/store_context.h"

namespace vkv::store {

enum class ReadState : uint8_t { kGood = 0, kAbsent = 1, kCorrupt = 2, kIo = 3 };

// Rows of tokens of several stripes, packed one behind the other into `target`.
struct TokenRequests {
  struct Part {
    uint32_t stripe;
    size_t end;  // of its tokens in the list below; they begin where the part before ends
  };
  std::vector<Part> parts;
  std::vector<uint32_t> tokens;  // of the block, the first is 0; in any order
  std::span<uint8_t> target;     // all of it is filled, or the state is not kGood
};

// How much a read of tokens took.
struct ReadCosts {
  uint64_t bytes = 0;  // from files, the header's included
  uint64_t chunks = 0;
};

// A file as it is.
struct WholeBlock {
  BlockHeader header;
  AlignedBuffer file{0};

  const uint8_t* payload() const { return file.data() + header.header_bytes(); }
};

// What a file has when a store is opened.
struct FoundHeader {
  BlockHeader header;
  uint64_t file_bytes = 0;
  double modified_ms = 0;
  uint16_t version = 0;
};

class BlockReader {
 public:
  BlockReader(StoreContext& context, OpenBlocks& open_blocks) : context_(context), open_blocks_(open_blocks) {}

  // Fills `payload`, in the order of the text, and sets the sums of its stripes. The bytes are not compared with sums:
  // that is the caller's. `header_bytes`: what the file's header is expected to have.
  ReadState Get(const Key& key, uint64_t header_bytes, std::span<uint8_t> payload, std::vector<uint32_t>& stripe_sums,
                AlignedBuffer& scratch);
  // Checks every chunk that it reads.
  ReadState GetTokens(const Key& key, const TokenRequests& requests, ReadCosts& costs, AlignedBuffer& scratch);
  // Reads a file and checks the header; with `checks` every chunk too.
  ReadState ReadWhole(const Key& key, bool checks, WholeBlock& block);
  // Opens a block's file and has its header read ahead, through the page cache, so that a disk reads many of them at a
  // time. Null: refused.
  std::unique_ptr<BlockFile> OpenAhead(const Key& key);
  // Reads a header, of what that gave, into the start of `scratch`. kCorrupt: it is none, or another block's; kAbsent:
  // of another version, which `version` has then. `found.file_bytes`: the file's size, as far as it is known.
  ReadState ReadHeaderOf(const Key& key, const BlockFile* file, FoundHeader& found, AlignedBuffer& scratch);

 private:
  struct TokenPlan;

  // `is_cached`: through the page cache, whatever the options say.
  ReadState OpenFile(const std::string& name, std::unique_ptr<BlockFile>& file, bool is_cached = false);
  ReadState ReadPart(const BlockFile& file, std::span<const iovec> parts, uint64_t offset, uint64_t& read);
  bool IsBlock(const BlockHeader& header, const Key& key) const {
    return header.key == key && header.name_space == context_.options.name_space;
  }
  ReadState Corrupt() {
    ++context_.counters.corrupt_reads;
    return ReadState::kCorrupt;
  }
  // Reads a payload whose file is not as it was expected, or memory not as its pages want it.
  ReadState ReadByItself(const Key& key, std::span<uint8_t> payload, std::vector<uint32_t>& stripe_sums);
  ReadState OpenForTokens(const Key& key, ReadCosts& costs, AlignedBuffer& scratch,
                          std::shared_ptr<const OpenBlock>& block);
  // Reads the header of a file into the start of `scratch`.
  ReadState ReadHeaderInto(const BlockFile& file, AlignedBuffer& scratch, BlockHeader& header, uint64_t& read,
                           uint16_t& version);

  StoreContext& context_;
  OpenBlocks& open_blocks_;
};

}  // namespace vkv::store

#endif  // VKV_STORE_BLOCK_READER_H_
