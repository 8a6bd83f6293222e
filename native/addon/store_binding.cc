// NativeStore: a disk store, seen from JavaScript. Converts and forwards; lib/store validates.
#include <napi.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "addon/answer_channel.h"
#include "addon/arguments.h"
#include "addon/bindings.h"
#include "addon/context.h"
#include "addon/store_faults_binding.h"
#include "crc32c.h"
#include "store/disk_store.h"

namespace vkv::addon {

class NativeStore : public Napi::ObjectWrap<NativeStore>, public Stoppable {
 public:
  static void Define(Napi::Env env, Napi::Object exports);

  explicit NativeStore(const Napi::CallbackInfo& info);  // (options, onAnswer, faults or undefined)
  ~NativeStore() override;

  void StopForTeardown() override;

 private:
  Napi::Value Open(const Napi::CallbackInfo& info);  // (id)
  Napi::Value Scan(const Napi::CallbackInfo& info);  // (id, first, count)
  // (id, key, parent, position, tokens, rowBytes, sums, notes, level, payload)
  Napi::Value Put(const Napi::CallbackInfo& info);
  Napi::Value Get(const Napi::CallbackInfo& info);        // (id, key, headerBytes, payload)
  Napi::Value GetTokens(const Napi::CallbackInfo& info);  // (id, key, stripes, counts, tokens, target)
  Napi::Value Reorder(const Napi::CallbackInfo& info);    // (id, key, storedToLogical, level)
  Napi::Value Check(const Napi::CallbackInfo& info);      // (id, key)
  Napi::Value Remove(const Napi::CallbackInfo& info);     // (id, names)
  Napi::Value Sync(const Napi::CallbackInfo& info);       // (id)
  Napi::Value Close(const Napi::CallbackInfo& info);      // (id)
  Napi::Value Stats(const Napi::CallbackInfo& info);
  Napi::Value Stop(const Napi::CallbackInfo& info);

  // Runs `call(id)`, whose answer the channel then expects; throws for bad arguments and once stopped.
  template <typename Call>
  Napi::Value Ask(const Napi::CallbackInfo& info, const Status& given, Call call);
  void StopStore();

  EnvContext* context_ = nullptr;  // null once torn down
  std::shared_ptr<AnswerChannel> channel_;
  std::shared_ptr<store::FileFaults> faults_;  // a test's; null otherwise
  std::unique_ptr<store::DiskStore> store_;    // null once stopped
};

namespace {

// Refuses an array of another length.
template <typename At>
store::Key ReadKey(Arguments& given, At at) {
  store::Key key;
  const std::span<uint8_t> bytes = given.Uint8s(at);
  if (bytes.size() != key.bytes.size())
    given.Refuse();
  else
    std::copy(bytes.begin(), bytes.end(), key.bytes.begin());
  return key;
}

bool IsCount(double value, double most) { return value >= 0 && value <= most && std::trunc(value) == value; }

}  // namespace

void NativeStore::Define(Napi::Env env, Napi::Object exports) {
  exports.Set("NativeStore",
              DefineClass(env, "NativeStore",
                          {InstanceMethod<&NativeStore::Open>("open"), InstanceMethod<&NativeStore::Scan>("scan"),
                           InstanceMethod<&NativeStore::Put>("put"), InstanceMethod<&NativeStore::Get>("get"),
                           InstanceMethod<&NativeStore::GetTokens>("getTokens"),
                           InstanceMethod<&NativeStore::Reorder>("reorder"),
                           InstanceMethod<&NativeStore::Check>("check"), InstanceMethod<&NativeStore::Remove>("remove"),
                           InstanceMethod<&NativeStore::Sync>("sync"), InstanceMethod<&NativeStore::Close>("close"),
                           InstanceMethod<&NativeStore::Stats>("stats"), InstanceMethod<&NativeStore::Stop>("stop")}));
}

NativeStore::NativeStore(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeStore>(info) {
  Arguments given(info, 0, "NativeStore");
  store::StoreOptions options;
  options.directory = given.String("directory");
  options.name_space = ReadKey(given, "namespace");
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
  const int64_t id = given.Integer(0, 1, kLargestInteger);
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Open(id); });
}

Napi::Value NativeStore::Scan(const Napi::CallbackInfo& info) {
  Arguments given(info, "scan");
  const int64_t id = given.Integer(0, 1, kLargestInteger);
  const auto first = static_cast<uint64_t>(given.Integer(1, 0, kLargestInteger));
  const auto count = static_cast<uint64_t>(given.Integer(2, 1, UINT32_MAX));
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Scan(id, first, count); });
}

Napi::Value NativeStore::Put(const Napi::CallbackInfo& info) {
  Arguments given(info, "put");
  const int64_t id = given.Integer(0, 1, kLargestInteger);
  store::BlockHeader header;
  header.key = ReadKey(given, 1);
  header.parent = ReadKey(given, 2);
  header.position = static_cast<uint64_t>(given.Integer(3, 0, kLargestInteger));
  const std::span<int32_t> tokens = given.Int32s(4);
  const std::span<double> row_bytes = given.Doubles(5), sums = given.Doubles(6);
  const std::span<uint8_t> notes = given.Uint8s(7);
  header.level = static_cast<uint8_t>(given.Integer(8, 0, UINT8_MAX));
  const std::span<uint8_t> payload = given.Uint8s(9);
  if (row_bytes.size() != sums.size()) given.Refuse();
  for (size_t k = 0; k < sums.size() && given.ok(); ++k) {
    if (!IsCount(row_bytes[k], UINT32_MAX) || !IsCount(sums[k], UINT32_MAX)) given.Refuse(static_cast<int64_t>(k));
    if (given.ok()) header.row_bytes.push_back(static_cast<uint32_t>(row_bytes[k]));
    if (given.ok()) header.stripe_sums.push_back(static_cast<uint32_t>(sums[k]));
  }
  header.tokens.assign(tokens.begin(), tokens.end());
  header.notes.assign(notes.begin(), notes.end());
  if (header.payload_bytes() != payload.size()) given.Refuse();
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Put(id, std::move(header), payload); });
}

Napi::Value NativeStore::Get(const Napi::CallbackInfo& info) {
  Arguments given(info, "get");
  const int64_t id = given.Integer(0, 1, kLargestInteger);
  const store::Key key = ReadKey(given, 1);
  const auto header_bytes =
      static_cast<uint64_t>(given.Integer(2, store::kBlockBytes, static_cast<int64_t>(store::kMostHeaderBytes)));
  const std::span<uint8_t> payload = given.Uint8s(3);
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Get(id, key, header_bytes, payload); });
}

Napi::Value NativeStore::GetTokens(const Napi::CallbackInfo& info) {
  Arguments given(info, "getTokens");
  const int64_t id = given.Integer(0, 1, kLargestInteger);
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
  const int64_t id = given.Integer(0, 1, kLargestInteger);
  const store::Key key = ReadKey(given, 1);
  const std::span<int32_t> order = given.Int32s(2);  // the store checks that it is a permutation
  std::vector<uint32_t> copied(order.begin(), order.end());
  const auto level = static_cast<uint8_t>(given.Integer(3, 0, UINT8_MAX));
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Reorder(id, key, std::move(copied), level); });
}

Napi::Value NativeStore::Check(const Napi::CallbackInfo& info) {
  Arguments given(info, "check");
  const int64_t id = given.Integer(0, 1, kLargestInteger);
  const store::Key key = ReadKey(given, 1);
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Check(id, key); });
}

Napi::Value NativeStore::Remove(const Napi::CallbackInfo& info) {
  Arguments given(info, "remove");
  const int64_t id = given.Integer(0, 1, kLargestInteger);
  const std::string joined = given.String(1);
  std::vector<std::string> names;
  for (size_t at = 0; at < joined.size();) {
    const size_t end = std::min(joined.find('/', at), joined.size());
    names.push_back(joined.substr(at, end - at));
    at = end + 1;
  }
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Remove(id, std::move(names)); });
}

Napi::Value NativeStore::Sync(const Napi::CallbackInfo& info) {
  Arguments given(info, "sync");
  const int64_t id = given.Integer(0, 1, kLargestInteger);
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Sync(id); });
}

Napi::Value NativeStore::Close(const Napi::CallbackInfo& info) {
  Arguments given(info, "close");
  const int64_t id = given.Integer(0, 1, kLargestInteger);
  return Ask(info, given.status(), [&](store::DiskStore& store) { store.Close(id); });
}

Napi::Value NativeStore::Stats(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  if (!store_) return env.Undefined();
  const store::StoreStats stats = store_->Stats();
  const store::StoreCounters& counters = store_->counters();
  auto result = Napi::Object::New(env);
  const std::pair<const char*, uint64_t> numbers[] = {
      {"puts", counters.puts},
      {"putBytes", counters.put_bytes},
      {"gets", counters.gets},
      {"getBytes", counters.get_bytes},
      {"corruptReads", counters.corrupt_reads},
      {"failedReads", counters.failed_reads},
      {"failedWrites", counters.failed_writes},
      {"failedSyncs", counters.failed_syncs},
      {"syncs", counters.syncs},
      {"readCalls", stats.read_calls},
      {"readBytes", stats.read_bytes},
      {"openFiles", stats.open_files},
      {"foreignFiles", counters.foreign_files},
      {"damagedFiles", counters.damaged_files},
  };
  for (const auto& [name, value] : numbers) result.Set(name, FromCount(env, value));
  result.Set("isDirect", stats.is_direct);
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

void DefineStore(Napi::Env env, Napi::Object exports) { NativeStore::Define(env, exports); }

}  // namespace vkv::addon
