#include "addon/pool_binding.h"

#include "addon/arguments.h"
#include "addon/context.h"
#include "addon/driver_binding.h"

namespace vkv::addon {

void NativePool::Define(Napi::Env env, Napi::Object exports) {
  const Napi::Function pool_class =
      DefineClass(env, "NativePool",
                  {InstanceMethod<&NativePool::Count>("count"), InstanceMethod<&NativePool::Available>("available"),
                   InstanceMethod<&NativePool::SetBudget>("setBudget"), InstanceMethod<&NativePool::Trim>("trim"),
                   InstanceMethod<&NativePool::Close>("close")});
  ContextOf(env).pool_class = Napi::Persistent(pool_class);
  exports.Set("NativePool", pool_class);
}

std::shared_ptr<PagePool> NativePool::Of(const Napi::Value& value) {
  NativePool* const pool = UnwrapTagged<NativePool>(value);
  return pool != nullptr ? pool->pool_ : nullptr;
}

NativePool::NativePool(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativePool>(info) {
  std::shared_ptr<Driver> driver = NativeDriver::Of(info[0]);
  driver_kind_ = KindOf(driver);
  Arguments given(info, "NativePool");
  const PoolOptions options = {static_cast<uint64_t>(given.Integer(1, 1, kLargestInteger)),
                               static_cast<uint64_t>(given.Integer(2, 0, kLargestInteger)),
                               static_cast<uint64_t>(given.Integer(3, 0, kLargestInteger)),
                               static_cast<uint64_t>(given.Integer(4, 0, kLargestInteger))};
  Status status = given.status();
  if (status.ok()) status = driver ? PagePool::Open(std::move(driver), options, pool_) : Fail(Code::kClosed, "driver");
  if (ThrowIfFailed(info.Env(), status, driver_kind_)) return;
  (void)napi_type_tag_object(info.Env(), info.This(), &kTag);
}

Napi::Value NativePool::Count(const Napi::CallbackInfo& info) {
  const PoolCounts from = pool_->counts();
  const uint64_t counts[] = {from.budget, from.created, from.free, from.in_use, from.earmarked, from.quarantined};
  Arguments given(info, "NativePool.count");
  const std::span<double> to = given.Doubles(0);
  if (to.size() < std::size(counts)) given.Refuse(static_cast<int64_t>(to.size()));
  if (!ThrowIfFailed(info.Env(), given.status(), driver_kind_)) {
    for (size_t k = 0; k < std::size(counts); ++k) to[k] = static_cast<double>(counts[k]);
  }
  return info.Env().Undefined();
}

Napi::Value NativePool::Available(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), static_cast<double>(pool_->available()));
}

Napi::Value NativePool::SetBudget(const Napi::CallbackInfo& info) {
  ThrowIfFailed(info.Env(), pool_->SetBudget(ToUint64(info[0])), driver_kind_);
  return info.Env().Undefined();
}

Napi::Value NativePool::Trim(const Napi::CallbackInfo& info) {
  ThrowIfFailed(info.Env(), pool_->Trim(ToUint64(info[0])), driver_kind_);
  return info.Env().Undefined();
}

Napi::Value NativePool::Close(const Napi::CallbackInfo& info) {
  ThrowIfFailed(info.Env(), pool_->Close(), driver_kind_);
  return info.Env().Undefined();
}

}  // namespace vkv::addon
