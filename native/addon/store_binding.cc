#include "addon/store_binding.h"

#include <cmath>

#include "addon/arguments.h"
#include "addon/store_faults_binding.h"
#include "crc32c.h"

namespace vkv::addon {
namespace {

// False where the array has another length.
template <typename Digest>
bool ReadDigest(std::span<uint8_t> from, Digest& digest) {
  if (from.size() != digest.bytes.size()) return false;
  std::copy(from.begin(), from.end(), digest.bytes.begin());
  return true;
}

store::Key ReadKey(Arguments& given, int at) {
  store::Key key;
  if (!ReadDigest(given.Uint8s(at), key)) given.Refuse();
  return key;
}

// Elements of an array: an address, or a Uint8Array of at least as many bytes as its entry of `bytes`.
std::vector<uint8_t*> ReadMemory(Arguments& given, const Napi::Value& list, std::span<double> bytes) {
  std::vector<uint8_t*> memory;
  if (!list.IsArray() || list.As<Napi::Array>().Length() != bytes.size()) {
    given.Refuse();
    return memory;
  }
  const auto array = list.As<Napi::Array>();
  memory.reserve(bytes.size());
  for (uint32_t k = 0; k < bytes.size() && given.ok(); ++k) {
    const Napi::Value element = array.Get(k);
    uint64_t address = 0;
    bool is_lossless = false;
    Bytes found;
    if (napi_get_value_bigint_uint64(list.Env(), element, &address, &is_lossless) == napi_ok && is_lossless)
      memory.push_back(reinterpret_cast<uint8_t*>(address));
    else if (ReadArray(list.Env(), element, napi_uint8_array, found) && static_cast<double>(found.bytes) >= bytes[k])
      memory.push_back(static_cast<uint8_t*>(found.data));
    else
      given.Refuse(k);
  }
  return memory;
}

// The same where all lie one behind the other in one Uint8Array.
std::vector<uint8_t*> ReadPacked(Arguments& given, size_t at, std::span<double> bytes) {
  const std::span<uint8_t> packed = given.Uint8s(at);
  std::vector<uint8_t*> memory;
  memory.reserve(bytes.size());
  double start = 0;
  for (size_t k = 0; k < bytes.size() && given.ok(); ++k) {
    if (!(bytes[k] >= 0 && start + bytes[k] <= static_cast<double>(packed.size())))
      given.Refuse(static_cast<int64_t>(k));
    memory.push_back(packed.data() + static_cast<uint64_t>(given.ok() ? start : 0));
    start += bytes[k];
  }
  return memory;
}

bool IsCount(double value, double most) { return value >= 0 && value <= most && std::trunc(value) == value; }

constexpr double kMostBytes = 1099511627776.0;  // 2⁴⁰

}  // namespace

void NativeStore::Define(Napi::Env env, Napi::Object exports) {
  exports.Set(
      "NativeStore",
      DefineClass(env, "NativeStore",
                  {InstanceMethod<&NativeStore::Open>("open"), InstanceMethod<&NativeStore::Put>("put"),
                   InstanceMethod<&NativeStore::Get>("get"), InstanceMethod<&NativeStore::GetTokens>("getTokens"),
                   InstanceMethod<&NativeStore::Reorder>("reorder"), InstanceMethod<&NativeStore::Check>("check"),
                   InstanceMethod<&NativeStore::Remove>("remove"), InstanceMethod<&NativeStore::List>("list"),
                   InstanceMethod<&NativeStore::Sync>("sync"), InstanceMethod<&NativeStore::Collect>("collect"),
                   InstanceMethod<&NativeStore::Close>("close"), InstanceMethod<&NativeStore::Has>("has"),
                   InstanceMethod<&NativeStore::SetLevel>("setLevel"), InstanceMethod<&NativeStore::Stats>("stats"),
                   InstanceMethod<&NativeStore::Stop>("stop")}));
}

NativeStore::NativeStore(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeStore>(info) {
  Arguments given(info, 0, "NativeStore");
  store::StoreOptions options;
  options.directory = given.String("directory");
  if (!ReadDigest(given.Uint8s("namespace"), options.name_space)) given.Refuse();
  options.limit_bytes = static_cast<uint64_t>(given.Integer("bytes", 1, kLargestInteger));
  options.segment_bytes = static_cast<uint64_t>(given.Integer("segmentBytes", 1, int64_t{1} << 32));
  const int64_t chunk_bytes = given.Integer("chunkBytes", store::kLeastChunkBytes, store::kMostChunkBytes);
  if (!store::IsChunkBytes(static_cast<uint64_t>(chunk_bytes))) given.Refuse(chunk_bytes);
  options.chunk_bytes = static_cast<uint32_t>(chunk_bytes);
  options.threads = static_cast<uint32_t>(given.Integer("threads", 1, 64));
  options.durability = static_cast<store::Durability>(given.Integer("durability", 0, 2));
  options.wants_direct = given.Boolean("direct");
  if (!info[1].IsFunction()) given.Refuse();
  if (auto* faults = UnwrapTagged<NativeStoreFaults>(info[2])) options.faults = faults_ = faults->faults();
  if (ThrowIfFailed(info.Env(), given.status())) return;
  channel_ = AnswerChannel::Open(info.Env(), info[1].As<Napi::Function>());
  if (!channel_) return;
  store_ = std::make_unique<store::DiskStore>(
      std::move(options), [channel = channel_](store::Answer&& answer) { channel->Deliver(std::move(answer)); });
  if (ThrowIfFailed(info.Env(), store_->Start())) {
    store_.reset();
    channel_->Close();
    return;
  }
  context_ = &ContextOf(info.Env());
  context_->stoppables.insert(this);
}

NativeStore::~NativeStore() {
  if (context_ != nullptr) context_->stoppables.erase(this);
  StopStore();
}

void NativeStore::StopForTeardown() {
  context_ = nullptr;
  if (store_) store_->StopCollecting();
  if (faults_) faults_->Clear();  // no held call goes on by itself
  StopStore();
}

void NativeStore::StopStore() {
  if (store_) store_->Stop();
  store_.reset();
  if (channel_) channel_->Close();
}

template <typename Call>
Napi::Value NativeStore::Ask(const Napi::CallbackInfo& info, const Status& given, Call call) {
  const Status status = store_ ? given : Fail(Code::kClosed, "disk store");
  if (ThrowIfFailed(info.Env(), status)) return info.Env().Undefined();
  channel_->Expect(info.Env());
  call(*store_);
  return info.Env().Undefined();
}

Napi::Value NativeStore::Open(const Napi::CallbackInfo& info) {
  Arguments given(info, "open");
  const int64_t id = given.Integer(0, 0, kLargestInteger);
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Open(id); });
}

Napi::Value NativeStore::Put(const Napi::CallbackInfo& info) {
  Arguments given(info, "put");
  const int64_t id = given.Integer(0, 0, kLargestInteger);
  store::PutRequest request;
  store::RecordHeader& header = request.header;
  header.key = ReadKey(given, 1);
  header.parent = ReadKey(given, 2);
  header.position = static_cast<uint64_t>(given.Integer(3, 0, kLargestInteger));
  const std::span<int32_t> tokens = given.Int32s(4);
  const std::span<uint8_t> extra = given.Uint8s(5);
  const std::span<double> ids = given.Doubles(6), byte_counts = given.Doubles(7);
  if (ids.size() != byte_counts.size() || extra.size() > store::kMaxExtraBytes || ids.size() > store::kMaxStripes)
    given.Refuse();
  for (size_t k = 0; k < ids.size() && given.ok(); ++k) {
    if (!IsCount(ids[k], UINT32_MAX) || !IsCount(byte_counts[k], kMostBytes)) given.Refuse(static_cast<int64_t>(k));
    if (given.ok())
      header.stripes.push_back({static_cast<uint32_t>(ids[k]), 0, static_cast<uint64_t>(byte_counts[k]), 0});
  }
  for (uint8_t* source : ReadMemory(given, info[8], byte_counts)) request.sources.push_back(source);
  header.level = static_cast<uint8_t>(given.Integer(9, 0, UINT8_MAX));
  header.tokens.assign(tokens.begin(), tokens.end());
  header.extra.assign(extra.begin(), extra.end());
  const Status status = store_ ? given.status() : Fail(Code::kClosed, "disk store");
  if (ThrowIfFailed(info.Env(), status)) return info.Env().Undefined();
  const store::PutState state = store_->Put(id, std::move(request));
  if (state == store::PutState::kStored) channel_->Expect(info.Env());
  return FromCount(info.Env(), static_cast<uint64_t>(state));
}

Napi::Value NativeStore::Get(const Napi::CallbackInfo& info) {
  Arguments given(info, "get");
  const int64_t id = given.Integer(0, 0, kLargestInteger);
  const store::Key key = ReadKey(given, 1);
  const std::span<double> stripes = given.Doubles(2), offsets = given.Doubles(3), byte_counts = given.Doubles(4);
  if (stripes.size() != byte_counts.size() || offsets.size() != byte_counts.size()) given.Refuse();
  const std::vector<uint8_t*> targets =
      info[5].IsTypedArray() ? ReadPacked(given, 5, byte_counts) : ReadMemory(given, info[5], byte_counts);
  std::vector<store::ReadRequest> requests;
  for (size_t k = 0; k < stripes.size() && given.ok(); ++k) {
    if (!IsCount(stripes[k], UINT32_MAX) || !IsCount(offsets[k], kMostBytes) || !IsCount(byte_counts[k], kMostBytes))
      given.Refuse(static_cast<int64_t>(k));
    if (given.ok())
      requests.push_back({static_cast<uint32_t>(stripes[k]), static_cast<uint64_t>(offsets[k]),
                          static_cast<uint64_t>(byte_counts[k]), targets[k]});
  }
  const bool checks = given.Boolean(6);
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Get(id, key, std::move(requests), checks); });
}

Napi::Value NativeStore::GetTokens(const Napi::CallbackInfo& info) {
  Arguments given(info, "getTokens");
  const int64_t id = given.Integer(0, 0, kLargestInteger);
  const store::Key key = ReadKey(given, 1);
  const std::span<double> stripes = given.Doubles(2), counts = given.Doubles(3);
  const std::span<int32_t> tokens = given.Int32s(4);
  store::TokenRequests requests;
  requests.target = given.Uint8s(5);
  if (stripes.size() != counts.size()) given.Refuse();
  size_t end = 0;
  for (size_t k = 0; k < stripes.size() && given.ok(); ++k) {
    if (!IsCount(stripes[k], UINT32_MAX) || !IsCount(counts[k], static_cast<double>(tokens.size() - end))) {
      given.Refuse(static_cast<int64_t>(k));
      break;
    }
    end += static_cast<size_t>(counts[k]);
    requests.parts.push_back({static_cast<uint32_t>(stripes[k]), end});
  }
  if (end != tokens.size()) given.Refuse();
  if (given.ok()) requests.tokens.assign(tokens.begin(), tokens.end());  // one below zero is beyond every record
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.GetTokens(id, key, std::move(requests)); });
}

Napi::Value NativeStore::Reorder(const Napi::CallbackInfo& info) {
  Arguments given(info, "reorder");
  const int64_t id = given.Integer(0, 0, kLargestInteger);
  const store::Key key = ReadKey(given, 1);
  const std::span<int32_t> order = given.Int32s(2);  // the store checks that it is a permutation
  std::vector<uint32_t> copied(order.begin(), order.end());
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Reorder(id, key, std::move(copied)); });
}

Napi::Value NativeStore::Check(const Napi::CallbackInfo& info) {
  Arguments given(info, "check");
  const int64_t id = given.Integer(0, 0, kLargestInteger);
  const store::Key key = ReadKey(given, 1);
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Check(id, key); });
}

Napi::Value NativeStore::Remove(const Napi::CallbackInfo& info) {
  Arguments given(info, "remove");
  const int64_t id = given.Integer(0, 0, kLargestInteger);
  const std::span<uint8_t> bytes = given.Uint8s(1);
  if (bytes.size() % sizeof(store::Key) != 0) given.Refuse(static_cast<int64_t>(bytes.size()));
  std::vector<store::Key> keys(given.ok() ? bytes.size() / sizeof(store::Key) : 0);
  if (!keys.empty()) std::memcpy(keys.data(), bytes.data(), bytes.size());
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Remove(id, std::move(keys)); });
}

Napi::Value NativeStore::List(const Napi::CallbackInfo& info) {
  Arguments given(info, "list");
  const int64_t id = given.Integer(0, 0, kLargestInteger);
  const auto segment = static_cast<uint64_t>(given.Integer(1, 0, kLargestInteger));
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.List(id, segment); });
}

Napi::Value NativeStore::Sync(const Napi::CallbackInfo& info) {
  Arguments given(info, "sync");
  const int64_t id = given.Integer(0, 0, kLargestInteger);
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Sync(id); });
}

Napi::Value NativeStore::Collect(const Napi::CallbackInfo& info) {
  Arguments given(info, "collect");
  const int64_t id = given.Integer(0, 0, kLargestInteger);
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Collect(id); });
}

Napi::Value NativeStore::Close(const Napi::CallbackInfo& info) {
  Arguments given(info, "close");
  const int64_t id = given.Integer(0, 0, kLargestInteger);
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Close(id); });
}

Napi::Value NativeStore::Has(const Napi::CallbackInfo& info) {
  Arguments given(info, "has");
  const store::Key key = ReadKey(given, 0);
  ThrowIfFailed(info.Env(), given.status());
  return Napi::Boolean::New(info.Env(), given.ok() && store_ && store_->Has(key));
}

Napi::Value NativeStore::SetLevel(const Napi::CallbackInfo& info) {
  Arguments given(info, "setLevel");
  const store::Key key = ReadKey(given, 0);
  const auto level = static_cast<uint8_t>(given.Integer(1, 0, UINT8_MAX));
  if (!ThrowIfFailed(info.Env(), given.status()) && store_) store_->SetLevel(key, level);
  return info.Env().Undefined();
}

Napi::Value NativeStore::Stats(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!store_) return env.Undefined();
  const store::StoreStats stats = store_->Stats();
  const store::StoreCounters& counters = store_->counters();
  auto result = Napi::Object::New(env);
  const std::pair<const char*, uint64_t> numbers[] = {
      {"records", stats.totals.records},        {"liveBytes", stats.totals.live_bytes},
      {"deadBytes", stats.totals.dead_bytes},   {"fileBytes", stats.totals.file_bytes},
      {"segments", stats.totals.segments},      {"failedSegments", stats.totals.failed_segments},
      {"tombstones", stats.totals.tombstones},  {"unrecordedRemovals", stats.totals.unrecorded},
      {"foreignFiles", counters.foreign_files}, {"puts", counters.puts},
      {"putBytes", counters.put_bytes},         {"gets", counters.gets},
      {"getBytes", counters.get_bytes},         {"corruptReads", counters.corrupt_reads},
      {"failedReads", counters.failed_reads},   {"failedWrites", counters.failed_writes},
      {"failedSyncs", counters.failed_syncs},   {"syncs", counters.syncs},
      {"readCalls", stats.read_calls},          {"readBytes", stats.read_bytes},
  };
  for (const auto& [name, value] : numbers) result.Set(name, FromCount(env, value));
  result.Set("isDirect", stats.is_direct);
  result.Set("canAllocate", stats.can_allocate);
  result.Set("checksum", Crc32cKind());
  result.Set("lastCall", stats.last_error.call);
  result.Set("lastErrno", FromCount(env, static_cast<uint64_t>(stats.last_error.error)));
  return result;
}

Napi::Value NativeStore::Stop(const Napi::CallbackInfo& info) {
  if (context_ != nullptr) context_->stoppables.erase(this);
  context_ = nullptr;
  StopStore();
  return info.Env().Undefined();
}

}  // namespace vkv::addon
