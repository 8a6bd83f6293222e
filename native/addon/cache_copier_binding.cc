// Blocks that JavaScript has copied between a cache's slots and plain memory, off its thread.

#include <optional>
#include <utility>
#include <vector>

#include "addon/cache_arguments.h"
#include "addon/cache_binding.h"

namespace vkv::addon {

Napi::Value NativeCache::OpenCopier(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  Arguments given(info, "openCopier");
  const auto threads = static_cast<int>(given.Integer(0, 1, 64));
  if (given.ok() && !info[1].IsFunction()) given.Refuse();
  const std::span<double> numbers = given.Doubles(2);
  std::vector<TensorProbe> probes;  // `numbers`: tensor and bytes of each
  for (size_t at = 0; at + 1 < numbers.size(); at += 2) {
    if (!(numbers[at] >= 0 && numbers[at] < static_cast<double>(tensors_.size()))) given.Refuse();
    if (!(numbers[at + 1] >= 1 && numbers[at + 1] <= static_cast<double>(INT32_MAX))) given.Refuse();
    if (given.ok()) probes.push_back({static_cast<size_t>(numbers[at]), static_cast<uint64_t>(numbers[at + 1])});
  }
  if (copier_ || !arrays_.is_open()) given.Refuse();
  if (ThrowIfFailed(env, given.status(), driver_kind_)) return env.Undefined();
  const bool is_open = copied_.Open(
      env, info[1].As<Napi::Function>(), [this](Napi::Env at, Napi::Function done, const BlockCopied& copied) {
        copied_.Await(-1);
        napi_value arguments[3] = {};
        napi_value result = nullptr;
        arguments[2] = MakeError(at, copied.status, driver_kind_);
        if (napi_create_double(at, static_cast<double>(copied.id), &arguments[0]) != napi_ok) return;
        if (napi_create_int32(at, copied.damaged_tensor, &arguments[1]) != napi_ok) return;
        napi_call_function(at, at.Undefined(), done, 3, arguments, &result);
      });
  if (!is_open) return env.Undefined();
  copier_ = std::make_unique<BlockCopier>(*cache_, tensors_, std::move(probes),
                                          [this](const BlockCopied& copied) { copied_.Notify(copied); });
  if (context_ == nullptr) RegisterForTeardown(env);
  ThrowIfFailed(env, copier_->Start(threads), driver_kind_);
  return env.Undefined();
}

Napi::Value NativeCache::CopyBlock(const Napi::CallbackInfo& info) {
  CacheArguments given(info, "copyBlock", cache_->layout());
  BlockCopy copy{};
  copy.id = static_cast<uint64_t>(given.Integer(0, 0, kLargestInteger));
  copy.is_load = given.Boolean(1);
  copy.slot = given.Slot(2);
  copy.from = given.Tokens(3);
  copy.tokens = given.Tokens(4);
  copy.skipped = static_cast<uint64_t>(given.Integer(5, 0, INT32_MAX));
  copy.block_tokens = static_cast<uint64_t>(given.Integer(6, 1, INT32_MAX));
  const std::span<uint8_t> payload = given.Uint8s(7);
  const std::span<uint32_t> sums = given.Uint32s(8);
  copy.is_ordered = given.Boolean(9);
  copy.payload = payload.data();
  copy.payload_bytes = payload.size();
  copy.sums = sums.data();
  if (given.ok() && (!copier_ || sums.size() < copier_->stripes())) given.Refuse();
  Status status = given.status();
  if (status.ok()) status = copier_->Begin(copy);
  if (status.ok()) copied_.Await(1);
  ThrowIfFailed(info.Env(), status, driver_kind_);
  return info.Env().Undefined();
}

Napi::Value NativeCache::CopierGate(const Napi::CallbackInfo& info) {
  Stream gate = 0;
  const Status status = copier_ ? copier_->Gate(gate) : Fail(Code::kInternal, "copierGate");
  if (ThrowIfFailed(info.Env(), status, driver_kind_)) return info.Env().Undefined();
  return Napi::BigInt::New(info.Env(), gate);
}

Napi::Value NativeCache::CancelCopies(const Napi::CallbackInfo& info) {
  if (copier_) copied_.Await(-static_cast<int64_t>(copier_->Cancel()));
  return info.Env().Undefined();
}

Napi::Value NativeCache::CopierStaging(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const std::optional<BlockCopier::Staging> staging = copier_ ? copier_->staging() : std::nullopt;
  if (!staging) return env.Undefined();
  const Napi::Array bytes = Napi::Array::New(env, 2);
  bytes.Set(0U, static_cast<double>(staging->pinned_bytes));
  bytes.Set(1U, static_cast<double>(staging->pageable_bytes));
  return bytes;
}

}  // namespace vkv::addon
