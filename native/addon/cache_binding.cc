#include "addon/cache_binding.h"

#include <algorithm>

#include "addon/pool_binding.h"

namespace vkv::addon {

void NativeCache::Define(Napi::Env env, Napi::Object exports) {
  const Napi::Function cache_class = DefineClass(
      env, "NativeCache",
      {InstanceMethod<&NativeCache::Grow>("grow"),           InstanceMethod<&NativeCache::Request>("request"),
       InstanceMethod<&NativeCache::Cancel>("cancel"),       InstanceMethod<&NativeCache::Quiesce>("quiesce"),
       InstanceMethod<&NativeCache::Shrink>("shrink"),       InstanceMethod<&NativeCache::Promise>("promise"),
       InstanceMethod<&NativeCache::Assign>("assign"),       InstanceMethod<&NativeCache::Keep>("keep"),
       InstanceMethod<&NativeCache::Drop>("drop"),           InstanceMethod<&NativeCache::Alias>("alias"),
       InstanceMethod<&NativeCache::CopyGroup>("copyGroup"), InstanceMethod<&NativeCache::Detach>("detach"),
       InstanceMethod<&NativeCache::Publish>("publish"),     InstanceMethod<&NativeCache::MapperState>("mapperState"),
       InstanceMethod<&NativeCache::Counters>("counters"),   InstanceMethod<&NativeCache::Address>("address"),
       InstanceMethod<&NativeCache::Window>("window"),       InstanceMethod<&NativeCache::Stamp>("stamp"),
       InstanceMethod<&NativeCache::Check>("check"),         InstanceMethod<&NativeCache::Verify>("verify"),
       InstanceMethod<&NativeCache::Close>("close")});
  ContextOf(env).cache_class = Napi::Persistent(cache_class);
  exports.Set("NativeCache", cache_class);
}

NativeCache::NativeCache(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeCache>(info) {
  const Napi::Env env = info.Env();
  const Napi::Object options = info[1].As<Napi::Object>();
  const std::span<double> token_bytes = ToFloat64Span(options.Get("tokenBytes"));
  const std::span<double> triplets = ToFloat64Span(options.Get("tensors"));

  Layout layout(ToUint64(options.Get("pageBytes")), ToUint64(options.Get("slots")), ToUint64(options.Get("maxTokens")),
                {token_bytes.begin(), token_bytes.end()});
  const bool scrub = options.Get("scrub").ToBoolean();
  std::shared_ptr<PagePool> pool = NativePool::Of(info[0]);
  if (!pool) {
    ThrowIfFailed(env, Fail(Code::kClosed, "driver"));
    return;
  }
  driver_kind_ = pool->driver().info().kind;
  if (ThrowIfFailed(env, KvCache::Open(std::move(pool), std::move(layout), scrub, cache_), driver_kind_)) return;

  std::vector<TensorSpan> tensors;
  for (size_t k = 0; k + 2 < triplets.size(); k += 3)
    tensors.push_back({static_cast<uint32_t>(triplets[k]), static_cast<uint64_t>(triplets[k + 1]),
                       static_cast<uint64_t>(triplets[k + 2])});
  pattern_ = std::make_unique<Pattern>(*cache_, std::move(tensors));
  rows_ = Napi::Persistent(info[2].As<Napi::Int32Array>());
  quarantined_ = Napi::Persistent(info[3].As<Napi::Uint8Array>());
  if (!options.Get("mapper").ToBoolean()) return;
  mapper_ = std::make_unique<Mapper>(*cache_);
  if (ThrowIfFailed(env, mapper_->Start(), driver_kind_)) return;
  context_ = &ContextOf(env);
  context_->stoppables.insert(this);
}

NativeCache::~NativeCache() {
  if (context_ != nullptr) context_->stoppables.erase(this);
  StopMapper();
}

void NativeCache::StopForTeardown() {
  context_ = nullptr;
  StopMapper();
}

void NativeCache::StopMapper() {
  if (mapper_) mapper_->Stop();
}

std::span<const GrowCommand> NativeCache::Commands(const Napi::CallbackInfo& info) const {
  static_assert(sizeof(GrowCommand) == 2 * sizeof(int32_t));
  const std::span<int32_t> pairs = ToInt32Span(info[0]);
  const size_t count = std::min<size_t>(ToUint64(info[1]), pairs.size() / 2);
  return {reinterpret_cast<const GrowCommand*>(pairs.data()), count};
}

Napi::Value NativeCache::Finish(Napi::Env env, const Status& status) {
  ThrowIfFailed(env, status, driver_kind_);
  return env.Undefined();
}

Napi::Value NativeCache::Grow(const Napi::CallbackInfo& info) {
  return Finish(info.Env(), cache_->Grow(Commands(info)));
}

Napi::Value NativeCache::Request(const Napi::CallbackInfo& info) {
  if (mapper_) mapper_->Request(Commands(info));
  return info.Env().Undefined();
}

Napi::Value NativeCache::Cancel(const Napi::CallbackInfo& info) {
  if (mapper_) mapper_->Cancel(ToInt32(info[0]));
  return info.Env().Undefined();
}

Napi::Value NativeCache::Quiesce(const Napi::CallbackInfo& info) {
  if (mapper_) mapper_->Quiesce();
  return info.Env().Undefined();
}

Napi::Value NativeCache::Shrink(const Napi::CallbackInfo& info) {
  return Finish(info.Env(), cache_->Shrink(ToInt32(info[0]), ToInt32(info[1])));
}

Napi::Value NativeCache::Promise(const Napi::CallbackInfo& info) {
  return Finish(info.Env(), cache_->Promise(ToInt32(info[0]), ToInt32(info[1])));
}

Napi::Value NativeCache::Assign(const Napi::CallbackInfo& info) {
  return Finish(info.Env(), cache_->Assign(ToInt32(info[0]), ToUint64(info[1])));
}

Napi::Value NativeCache::Keep(const Napi::CallbackInfo& info) {
  static_assert(sizeof(KeepCommand) == 4 * sizeof(int32_t));
  const std::span<int32_t> quads = ToInt32Span(info[0]);
  const size_t count = std::min<size_t>(ToUint64(info[1]), quads.size() / 4);
  return Finish(info.Env(), cache_->Keep({reinterpret_cast<const KeepCommand*>(quads.data()), count}));
}

Napi::Value NativeCache::Drop(const Napi::CallbackInfo& info) {
  const std::span<int32_t> ids = ToInt32Span(info[0]);
  cache_->Drop(ids.first(std::min<size_t>(ToUint64(info[1]), ids.size())));
  return info.Env().Undefined();
}

Napi::Value NativeCache::Alias(const Napi::CallbackInfo& info) {
  const std::span<int32_t> ids = ToInt32Span(info[1]);
  const size_t to = std::min<size_t>(ToUint64(info[3]), ids.size());
  const size_t from = std::min<size_t>(ToUint64(info[2]), to);
  return Finish(info.Env(), cache_->Alias(ToInt32(info[0]), static_cast<int32_t>(from), ids.subspan(from, to - from)));
}

Napi::Value NativeCache::CopyGroup(const Napi::CallbackInfo& info) {
  return Finish(
      info.Env(),
      cache_->CopyGroup({ToInt32(info[0]), ToInt32(info[1]), ToInt32(info[2]), static_cast<RowId>(ToUint64(info[3])),
                         ToUint64(info[4]), info[5].IsUndefined() ? std::nullopt : std::optional(ToUint64(info[5]))}));
}

Napi::Value NativeCache::Detach(const Napi::CallbackInfo& info) {
  return Finish(info.Env(), cache_->Detach({ToInt32(info[0]), ToInt32(info[1]), ToUint64(info[2]), ToInt32(info[3]),
                                            ToUint64(info[4])}));
}

Napi::Value NativeCache::Publish(const Napi::CallbackInfo& info) {
  const std::span<int32_t> rows = ToInt32Span(rows_.Value());
  const std::span<uint8_t> quarantined = ToBytes(quarantined_.Value());
  // A policy that was shown them may have given their memory away.
  if (std::min(rows.size(), quarantined.size()) < cache_->layout().slots())
    return Finish(info.Env(), Fail(Code::kInternal, "arrays of a cache", static_cast<int64_t>(rows.size())));
  return Napi::Number::New(info.Env(), cache_->Publish(rows, quarantined));
}

Napi::Value NativeCache::MapperState(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  Status last;
  const uint64_t late_errors = mapper_ ? mapper_->late_errors(last) : 0;
  Napi::Object state = Napi::Object::New(env);
  state.Set("isIdle", !mapper_ || mapper_->is_idle());
  state.Set("lateErrors", FromCount(env, late_errors));
  state.Set("starved", FromCount(env, mapper_ ? mapper_->starved() : 0));
  state.Set("lastError", MakeError(env, last, driver_kind_));
  return state;
}

Napi::Value NativeCache::Counters(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const CacheCounters from = cache_->counters();
  Napi::Object to = Napi::Object::New(env);
  to.Set("foregroundRows", FromCount(env, from.foreground_rows));
  to.Set("foregroundMaps", FromCount(env, from.foreground_maps));
  to.Set("backgroundRows", FromCount(env, from.background_rows));
  to.Set("backgroundMaps", FromCount(env, from.background_maps));
  to.Set("aliasedRows", FromCount(env, from.aliased_rows));
  to.Set("aliasMaps", FromCount(env, from.alias_maps));
  to.Set("detachedRows", FromCount(env, from.detached_rows));
  to.Set("copiedBytes", FromCount(env, from.copied_bytes));
  to.Set("unmappedRows", FromCount(env, from.unmapped_rows));
  to.Set("unmaps", FromCount(env, from.unmaps));
  to.Set("scrubbedPages", FromCount(env, from.scrubbed_pages));
  to.Set("mappedRows", FromCount(env, from.mapped_rows));
  to.Set("mappedPages", FromCount(env, from.mapped_pages));
  to.Set("keptGroups", FromCount(env, from.kept_groups));
  to.Set("quarantinedSlots", FromCount(env, from.quarantined_slots));
  return to;
}

Napi::Value NativeCache::Address(const Napi::CallbackInfo& info) {
  return FromUint64(info.Env(), cache_->address(ToUint64(info[0])));
}

Napi::Value NativeCache::Window(const Napi::CallbackInfo& info) {
  // Pre (lib/memory/views.ts): the bytes are mapped, and the window is detached before they are unmapped.
  auto* start = reinterpret_cast<void*>(cache_->address(ToUint64(info[0])) + ToUint64(info[1]));
  return Napi::ArrayBuffer::New(info.Env(), start, ToUint64(info[2]));
}

Napi::Value NativeCache::Stamp(const Napi::CallbackInfo& info) {
  return Finish(info.Env(), pattern_->Stamp(ToInt32(info[0]), ToUint64(info[1]), ToUint64(info[2]), ToUint64(info[3])));
}

Napi::Value NativeCache::Check(const Napi::CallbackInfo& info) {
  uint64_t wrong = 0;
  const Status status =
      pattern_->Check(ToInt32(info[0]), ToUint64(info[1]), ToUint64(info[2]), ToUint64(info[3]), wrong);
  if (ThrowIfFailed(info.Env(), status, driver_kind_)) return info.Env().Undefined();
  return FromCount(info.Env(), wrong);
}

Napi::Value NativeCache::Verify(const Napi::CallbackInfo& info) {
  uint64_t pages = 0;
  if (ThrowIfFailed(info.Env(), cache_->Verify(pages), driver_kind_)) return info.Env().Undefined();
  return FromCount(info.Env(), pages);
}

Napi::Value NativeCache::Close(const Napi::CallbackInfo& info) {
  StopMapper();
  return Finish(info.Env(), cache_->Close());
}

}  // namespace vkv::addon
