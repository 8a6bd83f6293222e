#include "store/disk_store.h"

#include <algorithm>
#include <cstring>

namespace vkv::store {
namespace {

// Files that a thread has open while it scans: the disk reads as many headers at a time.
constexpr uint64_t kFilesAhead = 16;

double Number(ReadState state) { return static_cast<double>(state); }
double Number(PutState state) { return static_cast<double>(state); }
double Number(LeftFile left) { return static_cast<double>(left); }
double Number(uint64_t value) { return static_cast<double>(value); }

void AddKey(const Key& key, std::vector<uint8_t>& bytes) {
  bytes.insert(bytes.end(), key.bytes.begin(), key.bytes.end());
}

}  // namespace

DiskStore::DiskStore(StoreOptions options, Deliver deliver)
    : context_(std::move(options)),
      reader_(context_, open_blocks_),
      writer_(context_, open_blocks_, reader_, [this] { timer_.Hurry(); }),
      deliver_(std::move(deliver)),
      timer_([this] { (void)SyncAll(); }) {}

Status DiskStore::Start() { return queue_.Start(context_.options.threads); }

void DiskStore::Stop() {
  queue_.Stop();  // first: what it does may start and stop the timer
  timer_.Stop();
}

bool DiskStore::SyncAll() {
  std::vector<std::string> lost;
  const bool is_good = writer_.SyncAll(lost);
  Answer answer;
  for (const std::string& name : lost) {
    Key key;
    (void)Key::FromHex(std::string_view(name).substr(0, 2 * key.bytes.size()), key);
    AddKey(key, answer.bytes);
  }
  if (!lost.empty()) deliver_(std::move(answer));
  return is_good;
}

void DiskStore::Open(int64_t id) {
  queue_.AddWrite([this, id](AlignedBuffer&) {
    Answer answer = {id, {}, {}, {}, {}};
    folder_ = std::make_unique<StoreFolder>(context_);
    answer.status = folder_->Open(answer.path);
    if (answer.status.ok() && context_.options.durability == Durability::kInterval) answer.status = timer_.Start();
    if (answer.status.ok()) {
      keys_ = folder_->TakeKeys();
      answer.numbers = {Number(keys_.size()), Number(folder_->own_bytes())};
      for (const StoreFolder::Left& left : folder_->left()) {
        answer.numbers.push_back(Number(left.bytes));
        AddKey(left.key, answer.bytes);
      }
    } else {
      folder_.reset();
    }
    deliver_(std::move(answer));
  });
}

void DiskStore::Scan(int64_t id, uint64_t first, uint64_t count) {
  queue_.AddRead([this, id, first, count](AlignedBuffer& scratch) {
    Answer answer = {id, {}, {}, {}, {}};
    std::vector<uint8_t> left;
    const uint64_t end = std::min<uint64_t>(keys_.size(), first + count);
    for (uint64_t k = first; k < end && answer.status.ok();) {
      std::vector<std::unique_ptr<BlockFile>> files;
      for (uint64_t ahead = k; ahead < std::min(end, k + kFilesAhead); ++ahead)
        files.push_back(reader_.OpenAhead(keys_[ahead]));
      for (size_t at = 0; at < files.size() && answer.status.ok(); ++at, ++k)
        answer.status = ScanOne(keys_[k], std::move(files[at]), scratch, answer, left);
    }
    answer.bytes.insert(answer.bytes.end(), left.begin(), left.end());
    deliver_(std::move(answer));
  });
}

Status DiskStore::ScanOne(const Key& key, std::unique_ptr<BlockFile> file, AlignedBuffer& scratch, Answer& answer,
                          std::vector<uint8_t>& left) {
  FoundHeader found;
  const auto leave = [&] {
    answer.numbers.push_back(Number(ToBlocks(found.file_bytes)));
    AddKey(key, left);
  };
  switch (reader_.ReadHeaderOf(key, file.get(), found, scratch)) {
    case ReadState::kGood: {
      const auto used = static_cast<uint32_t>(found.header.used_bytes());
      const size_t at = answer.bytes.size();
      answer.bytes.resize(at + 16 + (used + 7) / 8 * 8);
      std::memcpy(answer.bytes.data() + at, &used, sizeof used);
      std::memcpy(answer.bytes.data() + at + 8, &found.modified_ms, sizeof found.modified_ms);
      std::memcpy(answer.bytes.data() + at + 16, scratch.data(), used);
      break;
    }
    case ReadState::kCorrupt:
      // A write that a loss of power cut off, or damage: nothing of it can be read.
      ++context_.counters.damaged_files;
      if (const int error = context_.calls.Unlink(context_.PathOf(BlockName(key)))) {
        context_.Failed("unlink", error, context_.counters.failed_writes);
        leave();
      }
      break;
    case ReadState::kAbsent:
      answer.path = context_.PathOf(BlockName(key));
      return Fail(Code::kStoreVersion, "block", found.version, kFormatVersion);
    case ReadState::kIo:  // it may be readable another time
      leave();
      break;
  }
  return Ok();
}

void DiskStore::Put(int64_t id, BlockHeader header, std::span<const uint8_t> payload) {
  auto kept = std::make_shared<BlockHeader>(std::move(header));
  kept->chunk_bytes = context_.options.chunk_bytes;
  queue_.AddWrite([this, id, kept, payload](AlignedBuffer& scratch) {
    const Written written = writer_.Put(*kept, payload, scratch);
    deliver_({id, {}, {}, {Number(written.state), Number(written.left)}, {}});
  });
}

void DiskStore::Get(int64_t id, const Key& key, uint64_t header_bytes, std::span<uint8_t> payload) {
  ++context_.counters.gets;
  queue_.AddRead([this, id, key, header_bytes, payload](AlignedBuffer& scratch) {
    std::vector<uint32_t> sums;
    const ReadState state = reader_.Get(key, header_bytes, payload, sums, scratch);
    std::vector<uint8_t> bytes(sums.size() * sizeof(uint32_t));
    if (!sums.empty()) std::memcpy(bytes.data(), sums.data(), bytes.size());
    deliver_({id, {}, {}, {Number(state)}, std::move(bytes)});
  });
}

void DiskStore::GetTokens(int64_t id, const Key& key, TokenRequests requests) {
  ++context_.counters.gets;
  auto kept = std::make_shared<TokenRequests>(std::move(requests));
  queue_.AddRead([this, id, key, kept](AlignedBuffer& scratch) {
    ReadCosts costs;
    const ReadState state = reader_.GetTokens(key, *kept, costs, scratch);
    deliver_({id, {}, {}, {Number(state), Number(costs.bytes), Number(costs.chunks)}, {}});
  });
}

void DiskStore::Reorder(int64_t id, const Key& key, std::vector<uint32_t> stored_to_logical, uint8_t level) {
  auto order = std::make_shared<std::vector<uint32_t>>(std::move(stored_to_logical));
  queue_.AddWrite([this, id, key, order, level](AlignedBuffer& scratch) {
    const Reordered reordered = writer_.Reorder(key, *order, level, scratch);
    const Written& written = reordered.written;
    deliver_({id,
              {},
              {},
              {Number(reordered.read), Number(written.state), Number(reordered.header_bytes),
               Number(reordered.file_bytes), Number(written.left)},
              {}});
  });
}

void DiskStore::Check(int64_t id, const Key& key) {
  queue_.AddRead([this, id, key](AlignedBuffer&) {
    WholeBlock block;
    const ReadState state = reader_.ReadWhole(key, /*checks=*/true, block);
    deliver_({id, {}, {}, {Number(state), Number(block.file.bytes())}, {}});
  });
}

void DiskStore::Remove(int64_t id, std::vector<std::string> names) {
  auto kept = std::make_shared<std::vector<std::string>>(std::move(names));
  queue_.AddWrite([this, id, kept](AlignedBuffer&) {
    Answer answer = {id, {}, {}, {}, {}};
    answer.numbers = {writer_.Remove(*kept, answer.bytes) ? 1.0 : 0.0};
    deliver_(std::move(answer));
  });
}

void DiskStore::Sync(int64_t id) {
  queue_.AddWrite([this, id](AlignedBuffer&) {
    Answer answer = {id, {}, context_.folder, {}, {}};
    if (!SyncAll()) answer.status = Fail(Code::kStoreFailed, "sync");
    deliver_(std::move(answer));
  });
}

void DiskStore::Close(int64_t id) {
  queue_.AddWrite([this, id](AlignedBuffer&) {
    timer_.Stop();
    if (context_.options.durability != Durability::kNone) {
      std::vector<std::string> lost;
      (void)writer_.SyncAll(lost);
    }
    open_blocks_.Clear();
    folder_.reset();
    deliver_({id, {}, {}, {}, {}});
  });
}

StoreStats DiskStore::Stats() {
  const ReadTraffic& reads = context_.calls.reads();
  return {context_.Last(), reads.calls, reads.bytes, open_blocks_.count(), context_.can_direct};
}

}  // namespace vkv::store
