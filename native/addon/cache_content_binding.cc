// What JavaScript reads and writes of a cache's slots: addresses and windows, tokens put and copied, test patterns.

#include "addon/arena_binding.h"
#include "addon/cache_arguments.h"
#include "addon/cache_binding.h"
#include "addon/driver_binding.h"

namespace vkv::addon {

Napi::Value NativeCache::Address(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "address", cache_->layout());
  const auto reservation = given.Reservation(0);
  if (ThrowIfFailed(info.Env(), given.status(), driver_kind_)) return info.Env().Undefined();
  return FromUint64(info.Env(), cache_->address(reservation));
}

Napi::Value NativeCache::Window(const Napi::CallbackInfo& info) {
  // Pre (lib/device/slot-views.ts): the bytes are mapped, and the slot is revoked before any of them is unmapped.
  CacheArguments given(info, "window", cache_->layout());
  const int32_t slot = given.Slot(0);
  const auto reservation = given.Reservation(1);
  const auto stripe = static_cast<int64_t>(cache_->layout().StripeBytes(reservation));
  const int64_t from = given.Integer(2, 0, stripe);
  const int64_t to = given.Integer(3, from, stripe);
  if (ThrowIfFailed(info.Env(), given.status(), driver_kind_)) return info.Env().Undefined();
  uint64_t start = 0;
  const Status status =
      windows_->Show(slot, reservation, static_cast<uint64_t>(from), static_cast<uint64_t>(to), start);
  if (ThrowIfFailed(info.Env(), status, driver_kind_)) return info.Env().Undefined();
  const Napi::Value view =
      Napi::ArrayBuffer::New(info.Env(), reinterpret_cast<void*>(start), static_cast<size_t>(to - from));
  view_bytes_.AfterView(info.Env(), slot, to - from);
  return view;
}

Napi::Value NativeCache::BeforeRevoke(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "beforeRevoke", cache_->layout());
  const int32_t slot = given.Slot(0);
  if (ThrowIfFailed(info.Env(), given.status(), driver_kind_)) return info.Env().Undefined();
  view_bytes_.BeforeRevoke(info.Env(), slot);
  return info.Env().Undefined();
}

Napi::Value NativeCache::Revoke(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "revoke", cache_->layout());
  const int32_t slot = given.Slot(0);
  const bool is_escaped = given.Boolean(1);
  if (ThrowIfFailed(info.Env(), given.status(), driver_kind_)) return info.Env().Undefined();
  windows_->Hide(slot, is_escaped);
  return info.Env().Undefined();
}

Napi::Value NativeCache::Stamp(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "stamp", cache_->layout());
  const auto [slot, from, tokens, key] = given.Stamped();
  return Run(info, given, [&, slot = slot, from = from, tokens = tokens, key = key] {
    return pattern_->Stamp(slot, from, tokens, key);
  });
}

Napi::Value NativeCache::Check(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "check", cache_->layout());
  const auto [slot, from, tokens, key] = given.Stamped();
  uint64_t wrong = 0;
  const Status status = given.ok() ? pattern_->Check(slot, from, tokens, key, wrong) : given.status();
  if (ThrowIfFailed(info.Env(), status, driver_kind_)) return info.Env().Undefined();
  return FromCount(info.Env(), wrong);
}

Napi::Value NativeCache::Copy(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "copy", cache_->layout());
  const int32_t slot = given.Slot(0), row = given.Rows(1);
  const CopyCommand command = given.Copy(2, slot, row);
  return Run(info, given, [&] { return cache_->CopyRow(command); });
}

Napi::Value NativeCache::Read(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "read", cache_->layout());
  const int32_t slot = given.Slot(0);
  const size_t reservation = given.Reservation(1);
  const std::span<uint8_t> to = given.Uint8s(3);
  const auto stripe = static_cast<int64_t>(cache_->layout().StripeBytes(reservation));
  const auto from = static_cast<uint64_t>(given.Integer(2, 0, stripe - static_cast<int64_t>(to.size())));
  return Run(info, given, [&] { return cache_->Read(slot, reservation, from, to); });
}

Napi::Value NativeCache::Put(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "put", cache_->layout());
  const auto commands = given.Puts();
  const std::span<uint8_t> source = given.Uint8s(2);
  return Run(info, given, [&] { return cache_->Put(commands, source.data(), source.size()); });
}

Napi::Value NativeCache::Fetch(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "fetch", cache_->layout());
  const auto commands = given.Puts();
  const std::shared_ptr<Driver> driver = NativeDriver::Of(info[2]);
  FetchSource source = {driver.get(), given.Address(3), 0, 0, nullptr};
  source.bytes = static_cast<uint64_t>(given.Integer(4, 0, kLargestInteger));
  source.stream = given.Address(5);
  const std::shared_ptr<PinnedArena> arena = NativeArena::Of(info[6]);
  source.arena = arena.get();
  return Run(info, given, [&] { return driver ? cache_->Fetch(commands, source) : Fail(Code::kClosed, "driver"); });
}

}  // namespace vkv::addon
