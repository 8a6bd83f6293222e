#include "store/disk_store.h"

#include <algorithm>

namespace vkv::store {
namespace {

// With durability `interval`: what may be unsynced before the second is over.
constexpr uint64_t kMostUnsyncedBytes = 64 << 20;

PutState StateOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kDone: return PutState::kStored;
    case Outcome::kFull: return PutState::kFull;
    case Outcome::kNoSpace: return PutState::kNoSpace;
    case Outcome::kFailed: return PutState::kFailed;
  }
  return PutState::kFailed;
}

}  // namespace

DiskStore::DiskStore(StoreOptions options, Deliver deliver)
    : context_(std::move(options)),
      log_(context_),
      writer_(context_, log_),
      collector_(context_, log_, writer_),
      reorderer_(context_, log_, writer_),
      deliver_(std::move(deliver)),
      timer_([this] { SyncByTimer(); }) {}

Status DiskStore::Start() { return queue_.Start(context_.options.threads); }

void DiskStore::Stop() {
  StopCollecting();
  queue_.Stop();  // first: what it does may start and stop the timer
  timer_.Stop();
}

void DiskStore::SyncByTimer() {
  if (context_.counters.unsynced_bytes > 0 || writer_.HasWork()) {
    (void)writer_.RecordRemovals();
    (void)log_.SyncAll();
  }
}

void DiskStore::Open(int64_t id) {
  queue_.AddWrite([this, id](AlignedBuffer&) {
    Answer answer = {id, {}, {}, {}, {}};
    opener_ = std::make_unique<StoreOpener>(context_, log_);
    answer.status = opener_->Open(answer.path);
    if (answer.status.ok()) {
      Collected collected;
      collector_.DropDead(collected);
      opener_->SealTails();
      if (context_.options.durability == Durability::kInterval) answer.status = timer_.Start();
    }
    if (!answer.status.ok()) opener_.reset();
    deliver_(std::move(answer));
  });
}

PutState DiskStore::Put(int64_t id, PutRequest request) {
  RecordHeader& header = request.header;
  header.chunk_bytes = context_.options.chunk_bytes;
  PlaceStripes(header);
  const uint64_t header_bytes = header.header_bytes();
  if (header_bytes > kMaxHeaderBytes ||
      header.record_bytes() > SegmentLog::LargestRecord(context_.options.segment_bytes, header_bytes))
    return PutState::kTooLarge;
  header.sequence = context_.index.TakeSequence();
  if (!context_.index.BeginPut(header.key, header.sequence)) return PutState::kExists;
  auto kept = std::make_shared<PutRequest>(std::move(request));
  queue_.AddWrite([this, id, kept](AlignedBuffer& scratch) {
    const uint64_t bytes = kept->header.payload_bytes();
    const Outcome outcome = writer_.Put(*kept, scratch);
    if (outcome == Outcome::kDone) {
      ++context_.counters.puts;
      context_.counters.put_bytes += bytes;
    }
    if (writer_.HasWork()) (void)writer_.RecordRemovals();
    if (context_.counters.unsynced_bytes > kMostUnsyncedBytes) timer_.Hurry();
    deliver_({id, {}, {}, {static_cast<double>(StateOf(outcome))}, {}});
  });
  return PutState::kStored;
}

void DiskStore::RunPiece(const std::shared_ptr<RecordRead>& read, size_t piece, AlignedBuffer& scratch,
                         const std::function<void()>& end) {
  if (read->Run(piece, scratch)) end();
}

void DiskStore::RunPieces(const std::shared_ptr<RecordRead>& read, size_t pieces, AlignedBuffer& scratch,
                          const std::function<void()>& end) {
  if (pieces == 0) {
    end();
    return;
  }
  for (size_t k = 1; k < pieces; ++k)
    queue_.AddPart([this, read, k, end](AlignedBuffer& other) { RunPiece(read, k, other, end); });
  RunPiece(read, 0, scratch, end);
}

void DiskStore::Get(int64_t id, const Key& key, std::vector<ReadRequest> requests, bool checks) {
  ++context_.counters.gets;
  RecordPlace place;
  if (!context_.index.Find(key, place)) {
    deliver_({id, {}, {}, {}, std::vector<uint8_t>(requests.size(), static_cast<uint8_t>(ReadState::kAbsent))});
    return;
  }
  auto read = std::make_shared<RecordRead>(context_, std::move(place), std::move(requests), checks);
  queue_.AddRead([this, id, read](AlignedBuffer& scratch) {
    RunPieces(read, read->Plan(), scratch, [this, id, read] { deliver_({id, {}, {}, {}, read->TakeStates()}); });
  });
}

void DiskStore::GetTokens(int64_t id, const Key& key, TokenRequests tokens) {
  ++context_.counters.gets;
  RecordPlace place;
  if (!context_.index.Find(key, place)) {
    deliver_({id, {}, {}, {0, 0}, std::vector<uint8_t>(tokens.parts.size(), static_cast<uint8_t>(ReadState::kAbsent))});
    return;
  }
  auto read = std::make_shared<RecordRead>(context_, std::move(place), std::move(tokens));
  queue_.AddRead([this, id, read](AlignedBuffer& scratch) {
    RunPieces(read, read->Plan(), scratch, [this, id, read] {
      const std::vector<double> counts = {static_cast<double>(read->read_bytes()),
                                          static_cast<double>(read->read_chunks())};
      deliver_({id, {}, {}, counts, read->TakeStates()});
    });
  });
}

void DiskStore::Reorder(int64_t id, const Key& key, std::vector<uint32_t> stored_to_logical) {
  auto order = std::make_shared<std::vector<uint32_t>>(std::move(stored_to_logical));
  queue_.AddWrite([this, id, key, order](AlignedBuffer& scratch) {
    const Reordered reordered = reorderer_.Reorder(key, *order, scratch);
    if (writer_.HasWork()) (void)writer_.RecordRemovals();
    const PutState state = reordered.is_too_large ? PutState::kTooLarge : StateOf(reordered.outcome);
    deliver_({id, {}, {}, {static_cast<double>(state), static_cast<double>(reordered.state)}, {}});
  });
}

void DiskStore::Check(int64_t id, const Key& key) {
  RecordPlace place;
  if (!context_.index.Find(key, place)) {
    deliver_({id, {}, {}, {static_cast<double>(ReadState::kAbsent), 0}, {}});
    return;
  }
  const auto bytes = static_cast<double>(place.bytes);
  auto read = std::make_shared<RecordRead>(context_, std::move(place), std::vector<ReadRequest>(), /*checks=*/true);
  queue_.AddRead([this, id, bytes, read](AlignedBuffer& scratch) {
    RunPieces(read, read->PlanWhole(), scratch, [this, id, bytes, read] {
      const std::vector<uint8_t> states = read->TakeStates();
      const uint8_t worst = states.empty() ? 0 : *std::max_element(states.begin(), states.end());
      deliver_({id, {}, {}, {static_cast<double>(worst), bytes}, {}});
    });
  });
}

void DiskStore::Remove(int64_t id, std::vector<Key> keys) {
  const auto removed = static_cast<double>(context_.index.Remove(keys));
  queue_.AddWrite([this, id, removed](AlignedBuffer&) {
    Collected collected;
    collector_.DropDead(collected);  // what is gone with its file needs no removal
    const bool is_recorded = writer_.RecordRemovals() == Outcome::kDone;
    deliver_({id, {}, {}, {removed, is_recorded ? 1.0 : 0.0}, {}});
  });
}

void DiskStore::List(int64_t id, uint64_t from) {
  queue_.AddRead([this, id, from](AlignedBuffer&) {
    Answer answer = {id, {}, {}, {-1}, {}};
    if (const std::shared_ptr<Segment> segment = context_.index.SegmentFrom(from)) {
      answer.status = ListRecords(context_, *segment, answer.bytes);
      answer.path = segment->file->path();
      answer.numbers[0] = static_cast<double>(segment->number + 1);
    }
    deliver_(std::move(answer));
  });
}

void DiskStore::Sync(int64_t id) {
  queue_.AddWrite([this, id](AlignedBuffer&) {
    const bool is_recorded = writer_.RecordRemovals() == Outcome::kDone;
    const bool is_synced = log_.SyncAll() == Outcome::kDone;
    Answer answer = {id, {}, context_.folder, {}, {}};
    if (!is_recorded || !is_synced) answer.status = Fail(Code::kStoreFailed, "sync");
    deliver_(std::move(answer));
  });
}

void DiskStore::Collect(int64_t id) {
  queue_.AddWrite([this, id](AlignedBuffer& scratch) {
    const Collected collected = collector_.Collect(scratch);
    deliver_({id,
              {},
              {},
              {static_cast<double>(collected.dropped_segments), static_cast<double>(collected.freed_bytes),
               static_cast<double>(collected.copied_bytes)},
              {}});
  });
}

void DiskStore::Close(int64_t id) {
  queue_.AddWrite([this, id](AlignedBuffer&) {
    timer_.Stop();
    (void)writer_.RecordRemovals();
    log_.Finish();
    if (context_.options.durability != Durability::kNone) (void)log_.SyncAll();
    opener_.reset();
    deliver_({id, {}, {}, {}, {}});
  });
}

bool DiskStore::Has(const Key& key) { return context_.index.Has(key); }

StoreStats DiskStore::Stats() {
  const ReadTraffic& reads = context_.calls.reads();
  return {context_.index.Totals(), context_.Last(),      reads.calls, reads.bytes,
          context_.can_direct,     context_.can_allocate};
}

}  // namespace vkv::store
