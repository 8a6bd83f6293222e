#include "store/store_opener.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

#include "crc32c.h"
#include "host/system_calls.h"
#include "store/segment_name.h"

namespace vkv::store {
namespace {

constexpr const char* kIdentityName = "identity";
constexpr const char* kNewIdentityName = "identity.new";
constexpr const char* kLockName = "lock";
constexpr uint64_t kScanBytes = 1 << 20;

std::string FolderName(const Key& name_space) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name = "kvs-";
  for (size_t k = 0; k < 16; ++k) {
    name += kDigits[name_space.bytes[k] >> 4];
    name += kDigits[name_space.bytes[k] & 15];
  }
  return name;
}

bool IsOwnName(const std::string& name) {
  Epoch epoch;
  uint64_t number;
  return name == kIdentityName || name == kNewIdentityName || name == kLockName || ReadSegmentName(name, epoch, number);
}

}  // namespace

Status StoreOpener::Unavailable(const char* call, int error, const std::string& path) {
  path_ = path;
  return host::SystemError(Code::kStoreUnavailable, call, error);
}

Status StoreOpener::Open(std::string& path) {
  path_ = context_.options.directory;
  const auto open = [this]() -> Status {
    VKV_RETURN_IF_ERROR(MakeFolders());
    bool is_there = false;
    VKV_RETURN_IF_ERROR(CheckIdentity(is_there));
    VKV_RETURN_IF_ERROR(Lock());
    // Another process may have made it meanwhile.
    VKV_RETURN_IF_ERROR(CheckIdentity(is_there));
    if (!is_there) VKV_RETURN_IF_ERROR(WriteIdentityFile());
    std::vector<std::string> names;
    if (const int error = context_.calls.ReadFolder(context_.folder, names))
      return Unavailable("readdir", error, context_.folder);
    return LoadSegments(names);
  };
  const Status status = open();
  path = path_;
  return status;
}

Status StoreOpener::MakeFolders() {
  const std::string& directory = context_.options.directory;
  // All but the last may be beyond this process's rights, as long as they are there.
  for (size_t at = directory.find('/', 1); at != std::string::npos; at = directory.find('/', at + 1))
    (void)MakeFolder(directory.substr(0, at));
  VKV_RETURN_IF_ERROR(MakeFolder(directory));
  context_.folder = directory + "/" + FolderName(context_.options.name_space);
  return MakeFolder(context_.folder);
}

Status StoreOpener::MakeFolder(const std::string& path) {
  const int error = context_.calls.MakeFolder(path);
  if (error == EEXIST) return Ok();
  if (error != 0) return access(path.c_str(), F_OK) == 0 ? Ok() : Unavailable("mkdir", error, path);
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos || slash == 0) return Ok();
  const std::string parent = path.substr(0, slash);
  const int synced = context_.calls.SyncFolder(parent);
  return synced == 0 ? Ok() : Unavailable("fsync", synced, parent);
}

Status StoreOpener::CheckIdentity(bool& is_there) {
  is_there = false;
  std::vector<std::string> names;
  if (const int error = context_.calls.ReadFolder(context_.folder, names))
    return Unavailable("readdir", error, context_.folder);
  if (std::find(names.begin(), names.end(), kIdentityName) == names.end()) {
    const auto foreign =
        std::find_if(names.begin(), names.end(), [](const std::string& name) { return !IsOwnName(name); });
    const auto segment =
        std::find_if(names.begin(), names.end(), [](const std::string& name) { return name.starts_with("seg-"); });
    if (foreign == names.end() && segment == names.end()) return Ok();  // empty, or never finished
    path_ = context_.folder + "/" + *(foreign != names.end() ? foreign : segment);
    return Fail(Code::kStoreForeign, "identity");
  }
  path_ = context_.folder + "/" + kIdentityName;
  std::unique_ptr<BlockFile> file;
  bool direct = false;
  if (const int error = BlockFile::Open(context_.calls, path_, O_RDONLY, direct, file))
    return Unavailable("open", error, path_);
  AlignedBuffer block(kBlockBytes);
  if (block.bytes() == 0) return Unavailable("malloc", ENOMEM, path_);
  uint64_t read = 0;
  if (const int error = file->Read(block.data(), kBlockBytes, 0, read)) return Unavailable("pread", error, path_);
  Key name_space;
  uint16_t version = 0;
  const Parsed parsed = read < kBlockBytes ? Parsed::kNone : ReadIdentity(block.data(), name_space, version);
  if (parsed == Parsed::kLaterVersion) return Fail(Code::kStoreVersion, "identity", version, kFormatVersion);
  if (parsed != Parsed::kGood || name_space != context_.options.name_space)
    return Fail(Code::kStoreForeign, "identity");
  is_there = true;
  return Ok();
}

Status StoreOpener::WriteIdentityFile() {
  const std::string made = context_.folder + "/" + kNewIdentityName, path = context_.folder + "/" + kIdentityName;
  std::unique_ptr<BlockFile> file;
  bool direct = false;
  if (const int error = BlockFile::Open(context_.calls, made, O_RDWR | O_CREAT | O_TRUNC, direct, file))
    return Unavailable("open", error, made);
  AlignedBuffer block(kBlockBytes);
  if (block.bytes() == 0) return Unavailable("malloc", ENOMEM, made);
  WriteIdentity(context_.options.name_space, block.data());
  int error = file->Write(block.data(), kBlockBytes, 0);
  if (error != 0) return Unavailable("pwrite", error, made);
  context_.calls.Pass("identity-written");
  // Also with durability `none`: a store whose identity is lost is refused as foreign.
  error = file->Sync();
  if (error != 0) return Unavailable("fdatasync", error, made);
  error = context_.calls.Rename(made, path);
  if (error != 0) return Unavailable("rename", error, made);
  context_.calls.Pass("identity-renamed");
  error = context_.calls.SyncFolder(context_.folder);
  return error == 0 ? Ok() : Unavailable("fsync", error, context_.folder);
}

Status StoreOpener::Lock() {
  const std::string path = context_.folder + "/" + kLockName;
  bool direct = false;
  if (const int error = BlockFile::Open(context_.calls, path, O_RDWR | O_CREAT, direct, lock_))
    return Unavailable("open", error, path);
  AlignedBuffer block(kBlockBytes);
  if (block.bytes() == 0) return Unavailable("malloc", ENOMEM, path);
  const int error = lock_->Lock();
  if (error == EWOULDBLOCK) {
    uint64_t read = 0;
    (void)lock_->Read(block.data(), kBlockBytes, 0, read);
    lock_.reset();
    path_ = context_.folder;
    block.data()[kBlockBytes - 1] = 0;
    return Fail(Code::kStoreLocked, "flock", std::strtoll(reinterpret_cast<const char*>(block.data()), nullptr, 10));
  }
  if (error != 0) return Unavailable("flock", error, path);
  const std::string owner = std::to_string(getpid()) + "\n";
  std::memcpy(block.data(), owner.data(), owner.size());
  (void)lock_->Write(block.data(), kBlockBytes, 0);  // only told to those who are refused
  return Ok();
}

Status StoreOpener::LoadSegments(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    Epoch epoch;
    uint64_t number = 0;
    if (ReadSegmentName(name, epoch, number))
      VKV_RETURN_IF_ERROR(LoadSegment(name, epoch, number));
    else if (!IsOwnName(name))
      ++context_.counters.foreign_files;
  }
  context_.index.Rebuild();
  return Ok();
}

void StoreOpener::SealTails() {
  for (const std::shared_ptr<Segment>& segment : context_.index.Segments()) {
    {
      std::lock_guard lock(context_.index.mutex());
      // What could not be read may be a record after all, and a footer would be written over it.
      if (segment->state != SegmentState::kFull || segment->has_unread) continue;
      segment->is_sealing = true;
    }
    log_.Seal(*segment);
  }
}

Status StoreOpener::LoadSegment(const std::string& name, Epoch epoch, uint64_t number) {
  const std::string path = context_.folder + "/" + name;
  std::unique_ptr<BlockFile> file;
  bool direct = context_.can_direct;
  if (const int error = BlockFile::Open(context_.calls, path, O_RDWR, direct, file))
    return Unavailable("open", error, path);
  if (!direct) context_.can_direct = false;
  uint64_t size = 0;
  if (const int error = file->Size(size)) return Unavailable("fstat", error, path);
  AlignedBuffer block(kBlockBytes);
  if (block.bytes() == 0) return Unavailable("malloc", ENOMEM, path);
  uint64_t read = 0;
  if (const int error = file->Read(block.data(), kBlockBytes, 0, read)) return Unavailable("pread", error, path);
  SegmentHeader header;
  const Parsed parsed = read < kBlockBytes ? Parsed::kNone : ReadSegmentHeader(block.data(), header);
  path_ = path;
  if (parsed == Parsed::kLaterVersion)
    return Fail(Code::kStoreVersion, "segment", block.data()[4] | block.data()[5] << 8, kFormatVersion);
  if (parsed == Parsed::kGood && (header.epoch != epoch || header.name_space != context_.options.name_space)) {
    ++context_.counters.foreign_files;  // a copy under another name
    return Ok();
  }
  // A deleted file may be back after a loss of power, and its number taken. In memory each has one of its own.
  const auto all = context_.index.Segments();
  const bool is_taken = std::any_of(all.begin(), all.end(), [&](const auto& other) { return other->number == number; });
  // Where the header is damaged, the name has what is needed of it.
  auto segment = std::make_shared<Segment>(epoch, is_taken ? all.back()->number + 1 : number, std::move(file), size);
  if (!LoadFooter(*segment, size)) {
    segment->entries.clear();
    segment->removals.clear();
    segment->tail = kBlockBytes;
    segment->state = SegmentState::kFull;
    Parsed found = Parsed::kGood;
    if (const int error = ScanHeaders(*segment, size, found)) return Unavailable("pread", error, path);
    if (found == Parsed::kLaterVersion) return Fail(Code::kStoreVersion, "record", 0, kFormatVersion);
  }
  context_.index.AddSegment(std::move(segment));
  return Ok();
}

bool StoreOpener::LoadFooter(Segment& segment, uint64_t size) {
  if (size < 2 * kBlockBytes || size % kBlockBytes != 0) return false;
  AlignedBuffer block(kBlockBytes);
  uint64_t read = 0;
  if (block.bytes() == 0 || segment.file->Read(block.data(), kBlockBytes, size - kBlockBytes, read) != 0 ||
      read < kBlockBytes)
    return false;
  Trailer trailer;
  if (ReadTrailer(block.data(), trailer) != Parsed::kGood) return false;
  if (trailer.epoch != segment.epoch || trailer.name_space != context_.options.name_space) return false;
  if (trailer.footer_bytes > size || trailer.footer_offset % kBlockBytes != 0 || trailer.footer_offset < kBlockBytes ||
      trailer.footer_offset != size - kBlockBytes - ToBlocks(trailer.footer_bytes))
    return false;
  AlignedBuffer footer(std::max(trailer.footer_bytes, uint64_t{1}));
  if (footer.bytes() == 0) return false;
  if (trailer.footer_bytes > 0 &&
      (segment.file->Read(footer.data(), footer.bytes(), trailer.footer_offset, read) != 0 || read < footer.bytes()))
    return false;
  if (Crc32c(footer.data(), trailer.footer_bytes) != trailer.footer_sum) return false;
  bool is_whole = true;
  const bool is_formed = ReadFooter({footer.data(), trailer.footer_bytes}, [&](uint64_t offset,
                                                                               std::span<const uint8_t> bytes) {
    RecordHeader header;
    const bool is_within = offset % kBlockBytes == 0 && offset >= kBlockBytes && offset < trailer.footer_offset;
    if (!is_within || ReadHeader(bytes, segment.epoch, context_.options.name_space, offset, header) != Parsed::kGood)
      is_whole = false;
    else
      AddRecord(segment, header, bytes, true);
  });
  if (!is_formed || !is_whole) return false;
  segment.state = SegmentState::kSealed;
  segment.tail = trailer.footer_offset;
  segment.footer_offset = trailer.footer_offset;
  segment.footer_bytes = trailer.footer_bytes;
  return true;
}

int StoreOpener::ScanHeaders(Segment& segment, uint64_t size, Parsed& parsed) {
  AlignedBuffer window(kScanBytes);
  if (window.bytes() == 0) return ENOMEM;
  uint64_t from = 0, filled = 0;  // what of the file is in the window
  for (uint64_t at = kBlockBytes; at < size;) {
    if (at >= from + filled || at < from) {
      from = at;
      if (const int error = segment.file->Read(window.data(), window.bytes(), from, filled)) {
        // A bad sector hides what lies in it, not what lies behind it.
        context_.Failed("pread", error, context_.counters.failed_reads);
        segment.has_unread = true;
        if (segment.file->Read(window.data(), kBlockBytes, from, filled) != 0) filled = 0;
      }
      if (filled == 0) {
        at += kBlockBytes;
        continue;
      }
    }
    const uint64_t header_bytes = HeaderBytesAt(window.data() + (at - from), from + filled - at);
    RecordHeader header;
    if (header_bytes > 0) {
      AlignedBuffer whole(header_bytes);
      uint64_t read = 0;
      if (whole.bytes() == 0) return ENOMEM;
      const int error = segment.file->Read(whole.data(), whole.bytes(), at, read);
      if (error != 0) segment.has_unread = true;
      if (error == 0 && read >= header_bytes) {
        const std::span<const uint8_t> bytes(whole.data(), header_bytes);
        parsed = ReadHeader(bytes, segment.epoch, context_.options.name_space, at, header);
        if (parsed == Parsed::kLaterVersion) return 0;
        if (parsed == Parsed::kGood) {
          AddRecord(segment, header, bytes, false);
          at += header.record_bytes();
          segment.tail = at;
          continue;
        }
      }
    }
    at += kBlockBytes;
  }
  parsed = Parsed::kGood;
  return 0;
}

void StoreOpener::AddRecord(Segment& segment, const RecordHeader& header, std::span<const uint8_t> bytes,
                            bool is_sealed) {
  const bool is_record = header.kind == RecordKind::kRecord;
  const uint64_t ticket = ++segment.ticket;
  segment.synced_ticket = ticket;
  segment.entries.push_back({header.key, header.segment_offset, header.record_bytes(), header.sequence, ticket,
                             static_cast<uint32_t>(bytes.size()), is_record ? EntryState::kDead : EntryState::kRemovals,
                             header.level});
  for (const Removal& removal : header.removals) segment.removals.push_back({removal, ticket});
  if (!is_sealed) AddToFooter(segment.footer, header.segment_offset, bytes);
}

}  // namespace vkv::store
