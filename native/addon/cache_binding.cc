#include "addon/cache_binding.h"

#include "addon/cache_arguments.h"
#include "addon/pool_binding.h"

namespace vkv::addon {

void NativeCache::Define(Napi::Env env, Napi::Object exports) {
  const Napi::Function cache_class = DefineClass(env, "NativeCache",
                                                 {InstanceMethod<&NativeCache::Grow>("grow"),
                                                  InstanceMethod<&NativeCache::Request>("request"),
                                                  InstanceMethod<&NativeCache::Cancel>("cancel"),
                                                  InstanceMethod<&NativeCache::Quiesce>("quiesce"),
                                                  InstanceMethod<&NativeCache::Shrink>("shrink"),
                                                  InstanceMethod<&NativeCache::Slide>("slide"),
                                                  InstanceMethod<&NativeCache::Earmark>("earmark"),
                                                  InstanceMethod<&NativeCache::Assign>("assign"),
                                                  InstanceMethod<&NativeCache::Keep>("keep"),
                                                  InstanceMethod<&NativeCache::Drop>("drop"),
                                                  InstanceMethod<&NativeCache::Alias>("alias"),
                                                  InstanceMethod<&NativeCache::ShareRows>("shareRows"),
                                                  InstanceMethod<&NativeCache::Admit>("admit"),
                                                  InstanceMethod<&NativeCache::Detach>("detach"),
                                                  InstanceMethod<&NativeCache::Copy>("copy"),
                                                  InstanceMethod<&NativeCache::Put>("put"),
                                                  InstanceMethod<&NativeCache::Read>("read"),
                                                  InstanceMethod<&NativeCache::Fetch>("fetch"),
                                                  InstanceMethod<&NativeCache::Synchronize>("synchronize"),
                                                  InstanceMethod<&NativeCache::News>("news"),
                                                  InstanceMethod<&NativeCache::MapperState>("mapperState"),
                                                  InstanceMethod<&NativeCache::Counters>("counters"),
                                                  InstanceMethod<&NativeCache::Address>("address"),
                                                  InstanceMethod<&NativeCache::Window>("window"),
                                                  InstanceMethod<&NativeCache::BeforeRevoke>("beforeRevoke"),
                                                  InstanceMethod<&NativeCache::Revoke>("revoke"),
                                                  InstanceMethod<&NativeCache::Stamp>("stamp"),
                                                  InstanceMethod<&NativeCache::Check>("check"),
                                                  InstanceMethod<&NativeCache::OpenCopier>("openCopier"),
                                                  InstanceMethod<&NativeCache::CopierGate>("copierGate"),
                                                  InstanceMethod<&NativeCache::CopyBlock>("copyBlock"),
                                                  InstanceMethod<&NativeCache::CancelCopies>("cancelCopies"),
                                                  InstanceMethod<&NativeCache::CopierStaging>("copierStaging"),
                                                  InstanceMethod<&NativeCache::Verify>("verify"),
                                                  InstanceMethod<&NativeCache::Close>("close")});
  ContextOf(env).cache_class = Napi::Persistent(cache_class);
  exports.Set("NativeCache", cache_class);
}

NativeCache::NativeCache(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeCache>(info) {
  const Napi::Env env = info.Env();
  Arguments options(info, 1, "NativeCache");
  const auto page_bytes = static_cast<uint64_t>(options.Integer("pageBytes", 1, kLargestInteger));
  const auto slots = static_cast<uint64_t>(options.Integer("slots", 1, INT32_MAX));
  const auto max_tokens = static_cast<uint64_t>(options.Integer("maxTokens", 1, INT32_MAX));
  const bool scrub = options.Boolean("scrub");
  const NativeCache* const shared = UnwrapTagged<NativeCache>(options.Value("mapper"));
  const bool has_mapper = shared != nullptr || options.Boolean("mapper");
  const std::span<double> fault_names =
      options.IsUndefined("faultNames") ? std::span<double>() : options.Doubles("faultNames");
  const auto fault_set =
      options.IsUndefined("faultSet") ? 0 : static_cast<int32_t>(options.Integer("faultSet", -1, INT32_MAX));
  const std::span<double> token_bytes = options.Doubles("tokenBytes");
  const std::span<double> triplets = options.Doubles("tensors");
  Arguments arrays(info, "NativeCache");
  const bool has_first = !arrays.IsUndefined(4);
  if (arrays.Int32s(2).size() < slots || arrays.Uint8s(3).size() < slots) options.Refuse();
  if (has_first && arrays.Int32s(4).size() < slots) options.Refuse();
  if (ThrowIfFailed(env, options.status())) return;

  Layout layout(page_bytes, slots, max_tokens, {token_bytes.begin(), token_bytes.end()});
  std::shared_ptr<PagePool> pool = NativePool::Of(info[0]);
  if (!pool) {
    ThrowIfFailed(env, Fail(Code::kClosed, "driver"));
    return;
  }
  driver_kind_ = pool->driver().info().kind;
  std::vector<TensorSpan> tensors;
  for (size_t k = 0; k + 2 < triplets.size(); k += 3)
    tensors.push_back({static_cast<uint32_t>(triplets[k]), static_cast<uint64_t>(triplets[k + 1]),
                       static_cast<uint64_t>(triplets[k + 2])});
  for (const TensorSpan& tensor : tensors)
    if (tensor.reservation >= token_bytes.size()) options.Refuse(tensor.reservation);
  if (ThrowIfFailed(env, options.status())) return;
  if (ThrowIfFailed(env, KvCache::Open(std::move(pool), std::move(layout), scrub, cache_), driver_kind_)) return;

  pattern_ = std::make_unique<Pattern>(*cache_, tensors);
  tensors_ = std::move(tensors);
  windows_ = std::make_unique<SlotWindows>(*cache_);
  const FaultReport::Names names{.tensors = fault_names,
                                 .set = fault_set,
                                 .rows = info[2].As<Napi::Int32Array>().Data(),
                                 .first = has_first ? info[4].As<Napi::Int32Array>().Data() : nullptr};
  if (!fault_names.empty() && ThrowIfFailed(env, fault_report_.Open(*cache_, tensors_, names), driver_kind_)) return;
  arrays_.Open(info[2].As<Napi::Int32Array>(), info[3].As<Napi::Uint8Array>(),
               has_first ? info[4].As<Napi::Int32Array>() : Napi::Int32Array());
  (void)napi_type_tag_object(env, info.This(), &kTag);
  if (!has_mapper || ThrowIfFailed(env, StartMapper(shared), driver_kind_)) return;
  RegisterForTeardown(env);
}

Status NativeCache::StartMapper(const NativeCache* other) {
  const bool fits = other == nullptr || (other->mapper_ && &other->cache_->pool() == &cache_->pool());
  if (!fits) return Fail(Code::kInvalidArgument, "mapper");
  mapper_ = std::make_unique<Mapper>(*cache_);
  return other == nullptr ? mapper_->Start() : mapper_->Join(*other->mapper_);
}

void NativeCache::RegisterForTeardown(Napi::Env env) {
  context_ = &ContextOf(env);
  context_->stoppables.insert(this);
}

NativeCache::~NativeCache() {
  if (context_ != nullptr) context_->stoppables.erase(this);
  StopThreads();
  windows_.reset();  // before the memory goes
  view_bytes_.Close(Env());
}

void NativeCache::StopForTeardown() {
  context_ = nullptr;
  StopThreads();
}

void NativeCache::StopThreads() {
  if (mapper_) mapper_->Stop();
  if (copier_) copier_->Stop();
  copied_.Close();
}

template <typename Call>
Napi::Value NativeCache::Change(const Napi::CallbackInfo& info, const Arguments& given, Call call) {
  return Run(info, given, [&] {
    const Status status = call();
    const Status written = arrays_.WriteSlots(*cache_);
    return status.ok() ? written : status;
  });
}

template <typename Call>
Napi::Value NativeCache::ChangeSlot(const Napi::CallbackInfo& info, const Arguments& given, int32_t slot, Call call) {
  return Change(info, given, [&] {
    if (mapper_) mapper_->Cancel(slot);
    return call();
  });
}

Napi::Value NativeCache::Grow(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "grow", cache_->layout());
  const auto commands = given.Grows();
  return Change(info, given, [&] { return cache_->Grow(commands); });
}

Napi::Value NativeCache::Request(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "request", cache_->layout());
  const auto commands = given.Grows();
  return Run(info, given, [&] {
    if (mapper_) mapper_->Request(commands);
    return Ok();
  });
}

Napi::Value NativeCache::Cancel(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "cancel", cache_->layout());
  const int32_t slot = given.Slot(0);
  return ChangeSlot(info, given, slot, Ok);
}

Napi::Value NativeCache::Quiesce(const Napi::CallbackInfo& info) {
  if (mapper_) mapper_->Quiesce();
  ThrowIfFailed(info.Env(), arrays_.WriteSlots(*cache_), driver_kind_);
  return info.Env().Undefined();
}

Napi::Value NativeCache::Shrink(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "shrink", cache_->layout());
  const int32_t slot = given.Slot(0), rows = given.Rows(1);
  return ChangeSlot(info, given, slot, [&] { return cache_->Shrink(slot, rows); });
}

Napi::Value NativeCache::Slide(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "slide", cache_->layout());
  const auto commands = given.Slides();
  return Change(info, given, [&] { return cache_->Slide(commands); });
}

Napi::Value NativeCache::Earmark(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "earmark", cache_->layout());
  const int32_t slot = given.Slot(0), rows = given.Rows(1);
  return Run(info, given, [&] { return cache_->Earmark(slot, rows); });
}

Napi::Value NativeCache::Assign(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "assign", cache_->layout());
  const int32_t slot = given.Slot(0);
  const Tenant tenant = given.Address(1);
  return ChangeSlot(info, given, slot, [&] { return cache_->Assign(slot, tenant); });
}

Napi::Value NativeCache::Keep(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "keep", cache_->layout());
  const auto commands = given.Keeps();
  return Run(info, given, [&] { return cache_->Keep(commands); });
}

Napi::Value NativeCache::Drop(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "drop", cache_->layout());
  const auto ids = given.Drops();
  return Run(info, given, [&] {
    cache_->Drop(ids);
    return Ok();
  });
}

Napi::Value NativeCache::Alias(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "alias", cache_->layout());
  const int32_t slot = given.Slot(0);
  const KeptRun kept = given.Kept(1);
  return ChangeSlot(info, given, slot, [&] { return cache_->Alias(slot, kept); });
}

Napi::Value NativeCache::ShareRows(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "shareRows", cache_->layout());
  const int32_t from_slot = given.Slot(0), slot = given.Slot(1), rows = given.Rows(2);
  return ChangeSlot(info, given, slot, [&] { return cache_->ShareRows(from_slot, slot, rows); });
}

Napi::Value NativeCache::Admit(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "admit", cache_->layout());
  const int32_t slot = given.Slot(0);
  const Tenant tenant = given.Address(1);
  const KeptRun kept = given.Kept(2);
  AdmitCommand command = {slot, tenant, kept, given.Rows(5), given.Rows(6), std::nullopt};
  const CopyCommand copy = given.Copy(7, slot, kept.from + static_cast<int32_t>(kept.ids.size()));
  if (copy.tokens > 0) command.copy = copy;
  return ChangeSlot(info, given, slot, [&] { return cache_->Admit(command); });
}

Napi::Value NativeCache::Detach(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "detach", cache_->layout());
  const DetachCommand command = {given.Slot(0), given.Rows(1), given.Tokens(2), given.SlotOrNone(3), given.Address(4)};
  return ChangeSlot(info, given, command.slot, [&] { return cache_->Detach(command); });
}

Napi::Value NativeCache::Synchronize(const Napi::CallbackInfo& info) {
  Status status = arrays_.is_open() ? Ok() : Fail(Code::kClosed, "cache");
  // News first: where it says that the mapper is idle, all that it did is written behind that.
  if (status.ok()) status = arrays_.WriteNews(state_of_mapper(), *cache_);
  if (status.ok()) status = arrays_.WriteSlots(*cache_);
  ThrowIfFailed(info.Env(), status, driver_kind_);
  return info.Env().Undefined();
}

Napi::Value NativeCache::News(const Napi::CallbackInfo& info) {
  const Status status = arrays_.is_open() ? Ok() : Fail(Code::kClosed, "cache");
  return ThrowIfFailed(info.Env(), status, driver_kind_) ? info.Env().Undefined() : arrays_.news();
}

Napi::Value NativeCache::MapperState(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const vkv::MapperState from = state_of_mapper();
  Napi::Object to = Napi::Object::New(env);
  to.Set("isIdle", from.is_idle);
  to.Set("lateErrors", FromCount(env, from.late_errors));
  to.Set("droppedRequests", FromCount(env, from.dropped_requests));
  to.Set("lastError", MakeError(env, from.last_error, driver_kind_));
  return to;
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
  to.Set("slidRows", FromCount(env, from.slid_rows));
  to.Set("handedRows", FromCount(env, from.handed_rows));
  to.Set("scrubbedPages", FromCount(env, from.scrubbed_pages));
  to.Set("mappedRows", FromCount(env, from.mapped_rows));
  to.Set("mappedPages", FromCount(env, from.mapped_pages));
  to.Set("keptRows", FromCount(env, from.kept_rows));
  to.Set("quarantinedSlots", FromCount(env, from.quarantined_slots));
  return to;
}

Napi::Value NativeCache::Verify(const Napi::CallbackInfo& info) {
  uint64_t pages = 0;
  if (ThrowIfFailed(info.Env(), cache_->Verify(pages), driver_kind_)) return info.Env().Undefined();
  return FromCount(info.Env(), pages);
}

Napi::Value NativeCache::Close(const Napi::CallbackInfo& info) {
  StopThreads();
  windows_->Close();
  view_bytes_.Close(info.Env());
  fault_report_.Close();
  Status status = copier_ ? copier_->Close() : Ok();
  if (status.ok()) status = cache_->Close();
  (void)arrays_.WriteSlots(*cache_);  // where they are gone, the cache closes all the same
  if (status.ok()) arrays_.Close();   // else kept until this object is collected, which is no sooner than the next turn
  ThrowIfFailed(info.Env(), status, driver_kind_);
  return info.Env().Undefined();
}

}  // namespace vkv::addon
