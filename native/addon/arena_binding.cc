#include "addon/arena_binding.h"

#include "addon/context.h"
#include "addon/driver_binding.h"
#include "kernels/cuda/row_scatter_cuda.h"

namespace vkv::addon {

void NativeArena::Define(Napi::Env env, Napi::Object exports) {
  exports.Set("NativeArena", DefineClass(env, "NativeArena",
                                         {InstanceMethod<&NativeArena::Counts>("counts"),
                                          InstanceMethod<&NativeArena::Close>("close")}));
}

std::shared_ptr<PinnedArena> NativeArena::Of(const Napi::Value& value) {
  NativeArena* const arena = UnwrapTagged<NativeArena>(value);
  return arena != nullptr ? arena->arena_ : nullptr;
}

NativeArena::NativeArena(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeArena>(info) {
  device_ = NativeDriver::Of(info[0]);
  host_ = NativeDriver::Of(info[1]);
  if (!device_ || !host_ || host_->AsHost() == nullptr) {
    ThrowIfFailed(info.Env(), Fail(Code::kDriverMisuse, "NativeArena"));
    return;
  }
  std::unique_ptr<RowScatter> scatter;
  if (cuda::DriverCuda* const cuda = device_->AsCuda(); cuda != nullptr && device_->info().has_memory) {
    const std::span<const uint8_t> image = Arguments(info, "NativeArena").Uint8s(2);
    const DriverScope scope(*device_);
    Status status = scope.status();
    if (status.ok() && !image.empty()) status = kernels::cuda::CudaRowScatter::Open(*cuda, image.data(), scatter);
    if (!status.ok() && status.code != Code::kKernelsRefused) {
      ThrowIfFailed(info.Env(), status, KindOf(device_));
      device_.reset();
      host_.reset();
      return;
    }
  }
  arena_ = PinnedArena::Open(device_, std::shared_ptr<DriverHost>(host_, host_->AsHost()), std::move(scatter));
  (void)napi_type_tag_object(info.Env(), info.This(), &kTag);
}

Napi::Value NativeArena::Counts(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const PinnedArena::Counts from = arena_ ? arena_->counts() : PinnedArena::Counts();
  Napi::Object to = Napi::Object::New(env);
  to.Set("registeredBytes", FromCount(env, from.registered_bytes));
  to.Set("pageableBytes", FromCount(env, from.pageable_bytes));
  return to;
}

Napi::Value NativeArena::Close(const Napi::CallbackInfo& info) {
  if (!arena_) return info.Env().Undefined();
  const Status status = arena_->Close();
  if (ThrowIfFailed(info.Env(), status, KindOf(device_))) return info.Env().Undefined();
  arena_.reset();
  device_.reset();
  host_.reset();
  return info.Env().Undefined();
}

}  // namespace vkv::addon
