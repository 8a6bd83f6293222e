#include "addon/kernels_binding.h"

#include <algorithm>
#include <string>

#include "addon/context.h"
#include "addon/driver_binding.h"
#include "cuda/driver_cuda.h"
#include "kernels/cpu/kernel_set_cpu.h"
#include "kernels/cuda/kernel_set_cuda.h"

namespace vkv::addon {
namespace {

// Numbers per entry of the Float64Arrays; lib/kernels/kernel-layers.ts writes them.
constexpr size_t kTensorNumbers = 6;
constexpr size_t kLayerNumbers = 2 * kTensorNumbers + 2;
constexpr size_t kRegionNumbers = 3;

kernels::Tensor ToTensor(const double* from) {
  return {static_cast<uint64_t>(from[0]), static_cast<int64_t>(from[1]), static_cast<int64_t>(from[2]),
          static_cast<int64_t>(from[3]),  static_cast<int32_t>(from[4]), static_cast<int32_t>(from[5])};
}

// The address of a typed array's first element, or a BigInt's value.
uint64_t ToAddress(const Napi::Value& value) {
  if (!value.IsTypedArray()) return ToUint64(value);
  void* data = nullptr;
  napi_get_typedarray_info(value.Env(), value, nullptr, nullptr, &data, nullptr, nullptr);
  return reinterpret_cast<uint64_t>(data);
}

// An Int32Array as entries of a command, of which the first `count` count.
template <typename Entry>
std::span<const Entry> ToEntries(const Napi::Value& array, const Napi::Value& count) {
  const std::span<int32_t> numbers = ToInt32Span(array);
  const size_t size = std::min<size_t>(ToUint64(count), numbers.size_bytes() / sizeof(Entry));
  return {reinterpret_cast<const Entry*>(numbers.data()), size};
}

Napi::Value CpuInstructions(Napi::Env env) {
  Napi::Array names = Napi::Array::New(env);
  for (const kernels::SimdKernels* simd :
       {kernels::Avx512Kernels(), kernels::Avx2Kernels(), kernels::PortableKernels()}) {
    if (simd != nullptr) names.Set(names.Length(), simd->name);
  }
  return names;
}

}  // namespace

void NativeKernels::Define(Napi::Env env, Napi::Object exports) {
  const Napi::Function kernels_class = DefineClass(
      env, "NativeKernels",
      {InstanceMethod<&NativeKernels::Target>("target"), InstanceMethod<&NativeKernels::Append>("append"),
       InstanceMethod<&NativeKernels::CopyTokens>("copyTokens"),
       InstanceMethod<&NativeKernels::DecodeAttention>("decodeAttention"),
       InstanceMethod<&NativeKernels::PrefillAttention>("prefillAttention"),
       InstanceMethod<&NativeKernels::AppendStep>("appendStep"),
       InstanceMethod<&NativeKernels::DecodeStep>("decodeStep"),
       InstanceMethod<&NativeKernels::BeginCapture>("beginCapture"),
       InstanceMethod<&NativeKernels::EndCapture>("endCapture"),
       InstanceMethod<&NativeKernels::AbortCapture>("abortCapture"), InstanceMethod<&NativeKernels::Replay>("replay"),
       InstanceMethod<&NativeKernels::DropGraph>("dropGraph"), InstanceMethod<&NativeKernels::Enter>("enter"),
       InstanceMethod<&NativeKernels::Leave>("leave"), InstanceMethod<&NativeKernels::Close>("close")});
  exports.Set("NativeKernels", kernels_class);
  exports.Set("cpuInstructions", CpuInstructions(env));
}

NativeKernels::NativeKernels(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeKernels>(info) {
  const Napi::Env env = info.Env();
  const Napi::Object options = info[1].As<Napi::Object>();
  driver_ = NativeDriver::Of(info[0]);
  cache_dtype_ = static_cast<kernels::Dtype>(ToInt32(options.Get("cacheDtype")));
  row_dtype_ = static_cast<kernels::Dtype>(ToInt32(options.Get("rowDtype")));
  const std::span<double> layers = ToFloat64Span(options.Get("layers"));
  for (size_t at = 0; at + kLayerNumbers <= layers.size(); at += kLayerNumbers) {
    const double* const from = layers.data() + at;
    layers_.push_back({ToTensor(from), ToTensor(from + kTensorNumbers), static_cast<int32_t>(from[12]),
                       static_cast<float>(from[13])});
  }
  const std::span<double> regions = ToFloat64Span(options.Get("regions"));
  for (size_t at = 0; at + kRegionNumbers <= regions.size(); at += kRegionNumbers) {
    regions_.push_back({static_cast<uint64_t>(regions[at]), static_cast<int64_t>(regions[at + 1]),
                        static_cast<int64_t>(regions[at + 2])});
  }
  ThrowIfFailed(env, OpenSet(env, options), KindOf(driver_));
}

NativeKernels::~NativeKernels() {
  CloseSet();
  scopes_.clear();
}

Status NativeKernels::OpenSet(Napi::Env env, const Napi::Object& options) {
  if (!driver_) return Fail(Code::kClosed, "driver");
  if (driver_->info().kind == "host") {
    const std::string instructions = options.Get("instructions").As<Napi::String>().Utf8Value();
    set_ = std::make_unique<kernels::CpuKernels>(ContextOf(env).workers, ToInt32(options.Get("threads")),
                                                 kernels::ChooseSimd(instructions.c_str()));
    return Ok();
  }
  DriverScope scope(*driver_);
  VKV_RETURN_IF_ERROR(scope.status());
  return kernels::CudaKernels::Open(static_cast<cuda::DriverCuda&>(*driver_),
                                    options.Get("module").As<Napi::String>().Utf8Value(),
                                    ToUint64(options.Get("stream")), ToUint64(options.Get("workspaceBytes")), set_);
}

void NativeKernels::CloseSet() {
  if (!set_) return;
  DriverScope scope(*driver_);  // where it fails there is nothing to give back any more
  set_.reset();
}

template <typename Call>
Napi::Value NativeKernels::Run(Napi::Env env, Call call) {
  if (!set_) {
    ThrowIfFailed(env, Fail(Code::kClosed, "kernels"));
    return env.Undefined();
  }
  DriverScope scope(*driver_);
  ThrowIfFailed(env, scope.status().ok() ? call(*set_) : scope.status(), KindOf(driver_));
  return env.Undefined();
}

Napi::Value NativeKernels::Target(const Napi::CallbackInfo& info) {
  return Napi::String::New(info.Env(), set_ ? set_->name() : "");
}

Napi::Value NativeKernels::Append(const Napi::CallbackInfo& info) {
  const Layer& layer = layers_[ToUint64(info[0])];
  const kernels::AppendCommand command = {layer.keys,         layer.values, ToAddress(info[3]),
                                          ToAddress(info[4]), cache_dtype_, row_dtype_};
  return Run(info.Env(),
             [&](kernels::KernelSet& set) { return set.Append(command, ToEntries<kernels::Span>(info[1], info[2])); });
}

Napi::Value NativeKernels::CopyTokens(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](kernels::KernelSet& set) {
    return set.CopyTokens(regions_, ToEntries<kernels::TokenCopy>(info[0], info[1]));
  });
}

kernels::AttentionCommand NativeKernels::AttentionOf(const Napi::CallbackInfo& info) const {
  const Layer& layer = layers_[ToUint64(info[0])];
  return {layer.keys,   layer.values, ToAddress(info[3]), ToAddress(info[4]),
          cache_dtype_, row_dtype_,   layer.query_heads,  layer.scale};
}

Napi::Value NativeKernels::DecodeAttention(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](kernels::KernelSet& set) {
    return set.DecodeAttention(AttentionOf(info), ToEntries<kernels::Span>(info[1], info[2]));
  });
}

Napi::Value NativeKernels::PrefillAttention(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](kernels::KernelSet& set) {
    return set.PrefillAttention(AttentionOf(info), ToEntries<kernels::Span>(info[1], info[2]));
  });
}

namespace {

kernels::CudaKernels& OnDevice(kernels::KernelSet& set) { return static_cast<kernels::CudaKernels&>(set); }

kernels::cuda::StepList ToList(const Napi::CallbackInfo& info) { return {ToUint64(info[1]), ToInt32(info[2])}; }

}  // namespace

Napi::Value NativeKernels::AppendStep(const Napi::CallbackInfo& info) {
  const Layer& layer = layers_[ToUint64(info[0])];
  const kernels::AppendCommand command = {layer.keys,         layer.values, ToAddress(info[3]),
                                          ToAddress(info[4]), cache_dtype_, row_dtype_};
  return Run(info.Env(), [&](kernels::KernelSet& set) { return OnDevice(set).AppendStep(command, ToList(info)); });
}

Napi::Value NativeKernels::DecodeStep(const Napi::CallbackInfo& info) {
  return Run(info.Env(),
             [&](kernels::KernelSet& set) { return OnDevice(set).DecodeStep(AttentionOf(info), ToList(info)); });
}

Napi::Value NativeKernels::BeginCapture(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [](kernels::KernelSet& set) { return OnDevice(set).BeginCapture(); });
}

Napi::Value NativeKernels::EndCapture(const Napi::CallbackInfo& info) {
  uint64_t graph = 0;
  Run(info.Env(), [&](kernels::KernelSet& set) { return OnDevice(set).EndCapture(graph); });
  return FromUint64(info.Env(), graph);
}

Napi::Value NativeKernels::AbortCapture(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [](kernels::KernelSet& set) {
    OnDevice(set).AbortCapture();
    return Ok();
  });
}

Napi::Value NativeKernels::Replay(const Napi::CallbackInfo& info) {
  const std::span<uint8_t> bytes = ToBytes(info[2]);
  return Run(info.Env(), [&](kernels::KernelSet& set) {
    return OnDevice(set).Replay(ToUint64(info[0]), ToUint64(info[1]), bytes.data(), bytes.size());
  });
}

Napi::Value NativeKernels::DropGraph(const Napi::CallbackInfo& info) {
  return Run(info.Env(), [&](kernels::KernelSet& set) { return OnDevice(set).DropGraph(ToUint64(info[0])); });
}

Napi::Value NativeKernels::Enter(const Napi::CallbackInfo& info) {
  if (!driver_) {
    ThrowIfFailed(info.Env(), Fail(Code::kClosed, "kernels"));
    return info.Env().Undefined();
  }
  auto scope = std::make_unique<DriverScope>(*driver_);
  if (!ThrowIfFailed(info.Env(), scope->status(), KindOf(driver_))) scopes_.push_back(std::move(scope));
  return info.Env().Undefined();
}

Napi::Value NativeKernels::Leave(const Napi::CallbackInfo& info) {
  if (!scopes_.empty()) scopes_.pop_back();
  return info.Env().Undefined();
}

Napi::Value NativeKernels::Close(const Napi::CallbackInfo& info) {
  CloseSet();
  scopes_.clear();
  driver_.reset();
  return info.Env().Undefined();
}

}  // namespace vkv::addon
