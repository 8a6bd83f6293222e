#include "store/block_writer.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <cstring>

namespace vkv::store {
namespace {

// With durability `interval`: what may be unsynced before the second is over.
constexpr uint64_t kMostUnsyncedBytes = 64 << 20;

PutState StateOf(int error) {
  if (error == 0) return PutState::kStored;
  return error == ENOSPC || error == EDQUOT || error == EFBIG ? PutState::kNoSpace : PutState::kFailed;
}

void* Memory(const uint8_t* from) { return const_cast<uint8_t*>(from); }  // iovec knows no const

}  // namespace

Written BlockWriter::Put(BlockHeader& header, std::span<const uint8_t> payload, AlignedBuffer& scratch) {
  header.name_space = context_.options.name_space;
  header.TakeSums(payload.data());
  const Durability durability = context_.options.durability;
  const uint64_t refusals = folder_refusals_;
  Written written = Write(header, payload, durability == Durability::kSync, scratch);
  if (written.state != PutState::kStored) return written;
  const std::string name = BlockName(header.key);
  if (durability == Durability::kSync && (SyncFolder() != 0 || folder_refusals_ != refusals)) {
    // It may be gone after a loss of power, and is not to be found until then: also where another's sync, which may
    // have had this file to write, was refused meanwhile.
    written.state = PutState::kFailed;
    const int error = context_.calls.Unlink(context_.PathOf(name));
    ++folder_changes_;
    open_blocks_.Drop(name);
    if (error != 0) written.left = LeftFile::kBlock;
    return written;
  }
  context_.calls.Pass("folder-synced");
  if (durability == Durability::kInterval) {
    std::lock_guard lock(unsynced_mutex_);
    unsynced_[name] = header.file_bytes();
    unsynced_bytes_ += header.file_bytes();
    if (unsynced_bytes_ > kMostUnsyncedBytes) hurry_();
  }
  ++context_.counters.puts;
  context_.counters.put_bytes += payload.size();
  return written;
}

Written BlockWriter::Write(const BlockHeader& header, std::span<const uint8_t> payload, bool syncs,
                           AlignedBuffer& scratch) {
  const std::string made = context_.PathOf(NewBlockName(header.key)), name = BlockName(header.key);
  std::unique_ptr<BlockFile> file;
  const char* call = "open";
  int error = context_.Open(made, O_WRONLY | O_CREAT | O_TRUNC, file);
  if (open_blocks_.Relieve(error)) error = context_.Open(made, O_WRONLY | O_CREAT | O_TRUNC, file);
  std::atomic<uint64_t>* counter = &context_.counters.failed_writes;
  if (error == 0) {
    context_.calls.Pass("file-made");
    call = "pwritev";
    error = WriteFile(*file, header, payload, scratch);
    context_.calls.Pass("file-written");
  }
  if (error == 0 && syncs) {
    call = "fdatasync";
    error = file->Sync();
    if (error == 0)
      ++context_.counters.syncs;
    else
      counter = &context_.counters.failed_syncs;
    context_.calls.Pass("file-synced");
  }
  file.reset();
  if (error == 0) {
    call = "rename";
    error = context_.calls.Rename(made, context_.PathOf(name));
    context_.calls.Pass("file-renamed");
  }
  ++folder_changes_;
  open_blocks_.Drop(name);
  if (error == 0) return {PutState::kStored, LeftFile::kNone};
  context_.Failed(call, error, *counter);
  const int left = context_.calls.Unlink(made);
  return {StateOf(error), left != 0 && left != ENOENT ? LeftFile::kNew : LeftFile::kNone};
}

int BlockWriter::WriteFile(const BlockFile& file, const BlockHeader& header, std::span<const uint8_t> payload,
                           AlignedBuffer& scratch) const {
  const uint64_t header_bytes = header.header_bytes();
  AlignedBuffer head(header_bytes);
  if (head.bytes() == 0) return ENOMEM;
  WriteHeader(header, head.data());
  // What is less than a block at the end goes through the scratch buffer.
  const uint64_t whole = payload.size() / kBlockBytes * kBlockBytes, rest = payload.size() - whole;
  uint8_t* const tail = scratch.data();
  if (!file.is_direct() || IsWholeBlocks(payload.data(), whole)) {
    if (rest != 0) {
      std::memcpy(tail, payload.data() + whole, rest);
      std::memset(tail + rest, 0, kBlockBytes - rest);
    }
    const iovec parts[] = {
        {head.data(), header_bytes}, {Memory(payload.data()), whole}, {tail, rest == 0 ? 0 : kBlockBytes}};
    return file.Write(parts, 0);
  }
  const iovec first = {head.data(), header_bytes};
  if (const int error = file.Write({&first, 1}, 0)) return error;
  for (uint64_t done = 0; done < payload.size();) {
    const uint64_t bytes = std::min(scratch.bytes(), payload.size() - done), padded = ToBlocks(bytes);
    std::memcpy(scratch.data(), payload.data() + done, bytes);
    std::memset(scratch.data() + bytes, 0, padded - bytes);
    const iovec part = {scratch.data(), padded};
    if (const int error = file.Write({&part, 1}, header_bytes + done)) return error;
    done += bytes;
  }
  return 0;
}

Reordered BlockWriter::Reorder(const Key& key, std::span<const uint32_t> stored_to_logical, uint8_t level,
                               AlignedBuffer& scratch) {
  WholeBlock block;
  Reordered reordered;
  // All of it is checked: its chunks get new sums.
  reordered.read = reader_.ReadWhole(key, /*checks=*/true, block);
  if (reordered.read != ReadState::kGood) return reordered;
  const BlockHeader& before = block.header;
  BlockHeader header = before;
  header.level = level;
  header.chunk_bytes = context_.options.chunk_bytes;
  if (!header.SetOrder(stored_to_logical)) {
    reordered.read = ReadState::kAbsent;
    return reordered;
  }
  AlignedBuffer rows(header.payload_bytes());
  if (rows.bytes() < header.payload_bytes()) return reordered;
  uint64_t start = 0;
  for (size_t stripe = 0; stripe < header.row_bytes.size(); ++stripe) {
    const uint64_t row_bytes = header.row_bytes[stripe];
    for (size_t row = 0; row < stored_to_logical.size(); ++row)
      std::memcpy(rows.data() + start + row * row_bytes,
                  block.payload() + start + before.StoredRow(stored_to_logical[row]) * row_bytes, row_bytes);
    start += header.stripe_bytes(stripe);
  }
  reordered.header_bytes = before.header_bytes();
  reordered.file_bytes = before.file_bytes();
  if (header.stored_to_logical == before.stored_to_logical && header.chunk_bytes == before.chunk_bytes) {
    reordered.written.state = PutState::kStored;
    return reordered;
  }
  header.TakeSums(rows.data());
  if (header.used_bytes() > kMostHeaderBytes) return reordered;
  context_.calls.Pass("reordering");
  // In every durability: the old file may be safe already, and goes when the new one takes its name.
  reordered.written = Write(header, {rows.data(), header.payload_bytes()}, /*syncs=*/true, scratch);
  if (reordered.written.state == PutState::kStored) {
    reordered.header_bytes = header.header_bytes();
    reordered.file_bytes = header.file_bytes();
    context_.calls.Pass("reordered");
    if (context_.options.durability == Durability::kSync) (void)SyncFolder();  // either file is good
  }
  return reordered;
}

bool BlockWriter::Remove(std::span<const std::string> names, std::vector<uint8_t>& is_left) {
  bool is_good = true;
  const uint64_t refusals = folder_refusals_;
  for (const std::string& name : names) {
    const int error = context_.calls.Unlink(context_.PathOf(name));
    const bool is_gone = error == 0 || context_.IsDeleted(error);
    if (!is_gone) context_.Failed("unlink", error, context_.counters.failed_writes);
    is_left.push_back(is_gone ? 0 : 1);
    is_good = is_good && is_gone;
    open_blocks_.Drop(name);
    std::lock_guard lock(unsynced_mutex_);
    if (is_gone) unsynced_.erase(name);
  }
  folder_changes_ += names.size();
  context_.calls.Pass("files-deleted");
  if (context_.options.durability == Durability::kSync && (SyncFolder() != 0 || folder_refusals_ != refusals))
    is_good = false;
  context_.calls.Pass("deletions-synced");
  return is_good;
}

int BlockWriter::SyncFolder() {
  const uint64_t mine = folder_changes_;
  std::lock_guard lock(folder_mutex_);
  if (synced_changes_ >= mine) return 0;
  const uint64_t all = folder_changes_;
  int error = context_.calls.SyncFolder(context_.folder);
  if (open_blocks_.Relieve(error)) error = context_.calls.SyncFolder(context_.folder);
  if (error != 0) {
    ++folder_refusals_;
    return context_.Failed("fsync", error, context_.counters.failed_syncs);
  }
  ++context_.counters.syncs;
  synced_changes_ = all;
  return 0;
}

bool BlockWriter::SyncAll(std::vector<std::string>& lost) {
  std::lock_guard all(sync_mutex_);
  std::unordered_map<std::string, uint64_t> files;
  {
    std::lock_guard lock(unsynced_mutex_);
    files.swap(unsynced_);
    unsynced_bytes_ = 0;
  }
  bool is_good = true;
  for (const auto& [name, bytes] : files) {
    std::unique_ptr<BlockFile> file;
    bool direct = false;
    const std::string path = context_.PathOf(name);
    int error = BlockFile::Open(context_.calls, path, O_RDONLY, direct, file);
    if (open_blocks_.Relieve(error)) error = BlockFile::Open(context_.calls, path, O_RDONLY, direct, file);
    if (context_.IsDeleted(error)) continue;
    if (error == 0) {
      error = file->Sync();
      // What the kernel could not write it may count as written: it is not to be asked again.
      if (error != 0)
        lost.push_back(name);
      else
        ++context_.counters.syncs;
    } else {
      std::lock_guard lock(unsynced_mutex_);
      unsynced_.emplace(name, bytes);
      unsynced_bytes_ += bytes;
    }
    if (error == 0) continue;
    context_.Failed(file == nullptr ? "open" : "fdatasync", error, context_.counters.failed_syncs);
    is_good = false;
  }
  return SyncFolder() == 0 && is_good;
}

}  // namespace vkv::store
