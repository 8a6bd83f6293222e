// NativeKernels: the kernels over one cache's tensors, seen from JavaScript. Converts and forwards; lib/kernels
// validates.
//
// The tensors are bound at construction, so that a call is a layer's number, an Int32Array and two buffers: one
// crossing, nothing allocated. A buffer is a typed array or, as a BigInt, an address.
#include <napi.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "addon/arguments.h"
#include "addon/bindings.h"
#include "addon/context.h"
#include "addon/driver_binding.h"
#include "cuda/driver_cuda.h"
#include "driver.h"
#include "host/host_stream.h"
#include "kernels/cpu/kernel_set_cpu.h"
#include "kernels/cuda/kernel_set_cuda.h"
#include "kernels/cuda/launches.h"
#include "kernels/kernel_set.h"

namespace vkv::addon {

class NativeKernels : public Napi::ObjectWrap<NativeKernels> {
 public:
  static void Define(Napi::Env env, Napi::Object exports);

  // (driver, {layers: Float64Array, regions: Float64Array, sinks: Float64Array, slots, maxTokens, cacheDtype, rowDtype,
  // threads, instructions, stream, workspaceBytes, module})
  explicit NativeKernels(const Napi::CallbackInfo& info);
  ~NativeKernels() override;

 private:
  struct Layer {
    kernels::Tensor keys;
    kernels::Tensor values;
    int32_t query_heads = 0;
    float scale = 1;
    int32_t window = 0;
    int32_t chunk = 0;
    float softcap = 0;
    uint64_t sinks = 0;
  };

  Napi::Value Target(const Napi::CallbackInfo& info);
  Napi::Value Append(const Napi::CallbackInfo& info);            // (layer, spans, count, keys, values)
  Napi::Value CopyTokens(const Napi::CallbackInfo& info);        // (copies, count)
  Napi::Value DecodeAttention(const Napi::CallbackInfo& info);   // (layer, spans, count, queries, output)
  Napi::Value PrefillAttention(const Napi::CallbackInfo& info);  // (layer, spans, count, queries, output)
  // A captured step, on a device only.
  Napi::Value AppendStep(const Napi::CallbackInfo& info);  // (layer, list, count, keys, values)
  Napi::Value DecodeStep(const Napi::CallbackInfo& info);  // (layer, list, count, queries, output)
  Napi::Value BeginCapture(const Napi::CallbackInfo& info);
  Napi::Value EndCapture(const Napi::CallbackInfo& info);  // gives the graph
  Napi::Value AbortCapture(const Napi::CallbackInfo& info);
  Napi::Value Replay(const Napi::CallbackInfo& info);     // (graph, to, bytes)
  Napi::Value DropGraph(const Napi::CallbackInfo& info);  // (graph)
  // Makes the device current for all calls until Leave, on this thread. Nests.
  Napi::Value Enter(const Napi::CallbackInfo& info);
  Napi::Value Leave(const Napi::CallbackInfo& info);
  Napi::Value Close(const Napi::CallbackInfo& info);

  Status OpenSet(Napi::Env env, Arguments& options);
  void CloseSet();
  // Reads the layer number (the first argument) and the spans after it; counts their rows.
  const Layer& ReadLayer(Arguments& given) const;
  std::span<const kernels::Span> ReadSpans(Arguments& given, int64_t& rows) const;
  kernels::cuda::StepList ReadList(Arguments& given) const;
  // Commands for that many rows; their buffers are the call's last two arguments.
  kernels::AppendCommand AppendOf(Arguments& given, const Layer& layer, int64_t rows) const;
  kernels::AttentionCommand AttentionOf(Arguments& given, const Layer& layer, int64_t rows) const;
  template <typename Call>
  Napi::Value Attend(const Napi::CallbackInfo& info, const char* name, Call call);
  // Runs `call(set, entries)` with the device current, or queues it on the host driver's stream, if its arguments could
  // be read; throws the error of a failure, kClosed included. `call` is plain data.
  template <typename Entry, typename Call>
  Napi::Value Run(Napi::Env env, const Arguments& given, std::span<const Entry> entries, Call call);
  // As Run, for kernels of a device only.
  template <typename Call>
  Napi::Value RunOnDevice(Napi::Env env, Arguments& given, Call call);

  std::shared_ptr<Driver> driver_;
  std::shared_ptr<HostStream> stream_;                // of the host driver; null: its default stream
  std::unique_ptr<kernels::KernelSet> set_;           // null once closed; queued commands use it
  std::vector<std::unique_ptr<DriverScope>> scopes_;  // of Enter, innermost last
  std::vector<Layer> layers_;
  std::vector<float> sinks_;  // of layers that gave them without an address
  std::vector<kernels::Region> regions_;
  kernels::Dtype cache_dtype_ = kernels::Dtype::kFloat32;
  kernels::Dtype row_dtype_ = kernels::Dtype::kFloat32;
  int32_t slots_ = 0;
  int32_t max_tokens_ = 0;
};

namespace {

// Numbers per entry of the Float64Arrays; lib/kernels/kernel-layers.ts writes them.
constexpr size_t kTensorNumbers = 6;
constexpr size_t kLayerNumbers = 2 * kTensorNumbers + 7;
constexpr size_t kRegionNumbers = 3;

kernels::Tensor ToTensor(const double* from) {
  return {static_cast<uint64_t>(from[0]), static_cast<int64_t>(from[1]), static_cast<int64_t>(from[2]),
          static_cast<int64_t>(from[3]),  static_cast<int32_t>(from[4]), static_cast<int32_t>(from[5])};
}

// The activations of new tokens, of a type, or their address.
uint64_t Rows(Arguments& given, size_t at, kernels::Dtype dtype, int64_t elements) {
  return reinterpret_cast<uint64_t>(
      given.Buffer<void>(at, dtype == kernels::Dtype::kFloat32 ? napi_float32_array : napi_uint16_array,
                         static_cast<uint64_t>(elements * kernels::ElementBytes(dtype))));
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
  Arguments options(info, 1, "NativeKernels");
  driver_ = NativeDriver::Of(info[0]);
  cache_dtype_ = static_cast<kernels::Dtype>(options.Integer("cacheDtype", 0, 2));
  row_dtype_ = static_cast<kernels::Dtype>(options.Integer("rowDtype", 0, 2));
  slots_ = static_cast<int32_t>(options.Integer("slots", 1, INT32_MAX));
  max_tokens_ = static_cast<int32_t>(options.Integer("maxTokens", 1, INT32_MAX));
  for (const double sink : options.Doubles("sinks")) sinks_.push_back(static_cast<float>(sink));
  const std::span<double> layers = options.Doubles("layers");
  for (size_t at = 0; at + kLayerNumbers <= layers.size(); at += kLayerNumbers) {
    const double* const from = layers.data() + at;
    const double place = from[18];
    const bool has_place = place >= 0 && place + from[12] <= static_cast<double>(sinks_.size());
    layers_.push_back({.keys = ToTensor(from),
                       .values = ToTensor(from + kTensorNumbers),
                       .query_heads = static_cast<int32_t>(from[12]),
                       .scale = static_cast<float>(from[13]),
                       .window = static_cast<int32_t>(from[14]),
                       .chunk = static_cast<int32_t>(from[15]),
                       .softcap = static_cast<float>(from[16]),
                       .sinks = has_place ? reinterpret_cast<uint64_t>(&sinks_[static_cast<size_t>(place)])
                                          : static_cast<uint64_t>(from[17])});
  }
  const std::span<double> regions = options.Doubles("regions");
  for (size_t at = 0; at + kRegionNumbers <= regions.size(); at += kRegionNumbers) {
    regions_.push_back({static_cast<uint64_t>(regions[at]), static_cast<int64_t>(regions[at + 1]),
                        static_cast<int64_t>(regions[at + 2])});
  }
  ThrowIfFailed(info.Env(), OpenSet(info.Env(), options), KindOf(driver_));
}

NativeKernels::~NativeKernels() {
  CloseSet();
  scopes_.clear();
}

Status NativeKernels::OpenSet(Napi::Env env, Arguments& options) {
  if (!driver_) return Fail(Code::kClosed, "driver");
  if (driver_->AsHost() != nullptr) {
    const std::string instructions = options.String("instructions");
    const auto threads = static_cast<int32_t>(options.Integer("threads", 1, 1024));
    stream_ = HostStreamOf(driver_, options);
    VKV_RETURN_IF_ERROR(options.status());
    set_ = std::make_unique<kernels::CpuKernels>(ContextOf(env).WorkersOf(stream_), threads,
                                                 kernels::ChooseSimd(instructions.c_str()));
    return Ok();
  }
  const std::string module = options.String("module");
  const uint64_t stream = options.Address("stream");
  const auto workspace_bytes = static_cast<uint64_t>(options.Integer("workspaceBytes", 0, kLargestInteger));
  cuda::DriverCuda* const cuda = driver_->AsCuda();
  if (cuda == nullptr) options.Refuse();
  VKV_RETURN_IF_ERROR(options.status());
  DriverScope scope(*driver_);
  VKV_RETURN_IF_ERROR(scope.status());
  return kernels::CudaKernels::Open(*cuda, module, stream, workspace_bytes, set_);
}

void NativeKernels::CloseSet() {
  if (!set_) return;
  if (stream_) stream_->WaitForAll();
  DriverScope scope(*driver_);  // where it fails, nothing is left to give back
  set_.reset();
}

template <typename Entry, typename Call>
Napi::Value NativeKernels::Run(Napi::Env env, const Arguments& given, std::span<const Entry> entries, Call call) {
  if (!set_ || !given.ok()) {
    ThrowIfFailed(env, set_ ? given.status() : Fail(Code::kClosed, "kernels"));
    return env.Undefined();
  }
  DriverScope scope(*driver_);
  if (stream_ && scope.status().ok()) {
    stream_->Queue(HostStream::Kind::kDroppable, entries,
                   [set = set_.get(), call](std::span<const Entry> queued) { return call(*set, queued); });
  } else {
    ThrowIfFailed(env, scope.status().ok() ? call(*set_, entries) : scope.status(), KindOf(driver_));
  }
  return env.Undefined();
}

Napi::Value NativeKernels::Target(const Napi::CallbackInfo& info) {
  return Napi::String::New(info.Env(), set_ ? set_->name() : "");
}

const NativeKernels::Layer& NativeKernels::ReadLayer(Arguments& given) const {
  static const Layer kNone;
  const auto most = static_cast<int64_t>(layers_.size()) - 1;
  const int64_t layer = given.Integer(0, 0, most);
  return most >= 0 ? layers_[static_cast<size_t>(layer)] : kNone;
}

std::span<const kernels::Span> NativeKernels::ReadSpans(Arguments& given, int64_t& rows) const {
  const auto spans = given.Entries<kernels::Span>(1, 2);
  rows = 0;
  for (const kernels::Span& span : spans) {
    const bool is_inside = span.slot >= 0 && span.slot < slots_ && span.length >= 0 && span.tokens >= 0 &&
                           span.tokens <= max_tokens_ - span.length && span.first_row == rows;
    if (!is_inside) given.Refuse(span.slot);
    rows += span.tokens;
  }
  return given.ok() ? spans : std::span<const kernels::Span>();
}

kernels::AppendCommand NativeKernels::AppendOf(Arguments& given, const Layer& layer, int64_t rows) const {
  return {layer.keys,
          layer.values,
          Rows(given, 3, row_dtype_, rows * layer.keys.heads * layer.keys.dim),
          Rows(given, 4, row_dtype_, rows * layer.values.heads * layer.values.dim),
          cache_dtype_,
          row_dtype_};
}

kernels::AttentionCommand NativeKernels::AttentionOf(Arguments& given, const Layer& layer, int64_t rows) const {
  return {.keys = layer.keys,
          .values = layer.values,
          .queries = Rows(given, 3, row_dtype_, rows * layer.query_heads * layer.keys.dim),
          .output = Rows(given, 4, row_dtype_, rows * layer.query_heads * layer.values.dim),
          .sinks = layer.sinks,
          .cache_dtype = cache_dtype_,
          .row_dtype = row_dtype_,
          .query_heads = layer.query_heads,
          .scale = layer.scale,
          .window = layer.window,
          .chunk = layer.chunk,
          .softcap = layer.softcap};
}

Napi::Value NativeKernels::Append(const Napi::CallbackInfo& info) {
  Arguments given(info, "append");
  const Layer& layer = ReadLayer(given);
  int64_t rows = 0;
  const auto spans = ReadSpans(given, rows);
  const kernels::AppendCommand command = AppendOf(given, layer, rows);
  return Run(info.Env(), given, spans,
             [command](kernels::KernelSet& set, auto entries) { return set.Append(command, entries); });
}

Napi::Value NativeKernels::CopyTokens(const Napi::CallbackInfo& info) {
  Arguments given(info, "copyTokens");
  const auto copies = given.Entries<kernels::TokenCopy>(0, 1);
  const auto is_inside = [&](int32_t slot, int32_t token, int32_t tokens) {
    return slot >= 0 && slot < slots_ && token >= 0 && tokens >= 0 && tokens <= max_tokens_ - token;
  };
  for (const kernels::TokenCopy& copy : copies) {
    if (!is_inside(copy.from_slot, copy.from_token, copy.tokens)) given.Refuse(copy.from_slot);
    if (!is_inside(copy.to_slot, copy.to_token, copy.tokens)) given.Refuse(copy.to_slot);
  }
  return Run(info.Env(), given, copies,
             [regions = std::span<const kernels::Region>(regions_)](kernels::KernelSet& set, auto entries) {
               return set.CopyTokens(regions, entries);
             });
}

template <typename Call>
Napi::Value NativeKernels::Attend(const Napi::CallbackInfo& info, const char* name, Call call) {
  Arguments given(info, name);
  const Layer& layer = ReadLayer(given);
  int64_t rows = 0;
  const auto spans = ReadSpans(given, rows);
  const kernels::AttentionCommand command = AttentionOf(given, layer, rows);
  return Run(info.Env(), given, spans,
             [command, call](kernels::KernelSet& set, auto entries) { return call(set, command, entries); });
}

Napi::Value NativeKernels::DecodeAttention(const Napi::CallbackInfo& info) {
  return Attend(info, "decodeAttention", [](kernels::KernelSet& set, const auto& command, auto spans) {
    return set.DecodeAttention(command, spans);
  });
}

Napi::Value NativeKernels::PrefillAttention(const Napi::CallbackInfo& info) {
  return Attend(info, "prefillAttention", [](kernels::KernelSet& set, const auto& command, auto spans) {
    return set.PrefillAttention(command, spans);
  });
}

template <typename Call>
Napi::Value NativeKernels::RunOnDevice(Napi::Env env, Arguments& given, Call call) {
  if (driver_ && driver_->AsHost() != nullptr) given.Refuse();
  if (!set_ || !given.ok()) {
    ThrowIfFailed(env, set_ ? given.status() : Fail(Code::kClosed, "kernels"));
    return env.Undefined();
  }
  DriverScope scope(*driver_);
  ThrowIfFailed(env, scope.status().ok() ? call(static_cast<kernels::CudaKernels&>(*set_)) : scope.status(),
                KindOf(driver_));
  return env.Undefined();
}

kernels::cuda::StepList NativeKernels::ReadList(Arguments& given) const {
  return {given.Address(1), static_cast<int32_t>(given.Integer(2, 1, slots_))};
}

Napi::Value NativeKernels::AppendStep(const Napi::CallbackInfo& info) {
  Arguments given(info, "appendStep");
  const Layer& layer = ReadLayer(given);
  const kernels::cuda::StepList list = ReadList(given);
  const kernels::AppendCommand command = AppendOf(given, layer, list.count);
  return RunOnDevice(info.Env(), given, [&](kernels::CudaKernels& set) { return set.AppendStep(command, list); });
}

Napi::Value NativeKernels::DecodeStep(const Napi::CallbackInfo& info) {
  Arguments given(info, "decodeStep");
  const Layer& layer = ReadLayer(given);
  const kernels::cuda::StepList list = ReadList(given);
  const kernels::AttentionCommand command = AttentionOf(given, layer, list.count);
  return RunOnDevice(info.Env(), given, [&](kernels::CudaKernels& set) { return set.DecodeStep(command, list); });
}

Napi::Value NativeKernels::BeginCapture(const Napi::CallbackInfo& info) {
  Arguments given(info, "beginCapture");
  return RunOnDevice(info.Env(), given, [](kernels::CudaKernels& set) { return set.BeginCapture(); });
}

Napi::Value NativeKernels::EndCapture(const Napi::CallbackInfo& info) {
  Arguments given(info, "endCapture");
  uint64_t graph = 0;
  RunOnDevice(info.Env(), given, [&](kernels::CudaKernels& set) { return set.EndCapture(graph); });
  return graph == 0 ? info.Env().Undefined() : FromUint64(info.Env(), graph);
}

Napi::Value NativeKernels::AbortCapture(const Napi::CallbackInfo& info) {
  Arguments given(info, "abortCapture");
  if (!set_) return info.Env().Undefined();  // closing the kernels ended the capture
  return RunOnDevice(info.Env(), given, [](kernels::CudaKernels& set) {
    set.AbortCapture();
    return Ok();
  });
}

Napi::Value NativeKernels::Replay(const Napi::CallbackInfo& info) {
  Arguments given(info, "replay");
  const uint64_t graph = given.Address(0), to = given.Address(1);
  const std::span<uint8_t> bytes = given.Uint8s(2);
  return RunOnDevice(info.Env(), given,
                     [&](kernels::CudaKernels& set) { return set.Replay(graph, to, bytes.data(), bytes.size()); });
}

Napi::Value NativeKernels::DropGraph(const Napi::CallbackInfo& info) {
  Arguments given(info, "dropGraph");
  const uint64_t graph = given.Address(0);
  if (given.ok() && (!set_ || driver_->is_lost()))
    return info.Env().Undefined();  // destroyed with the kernels or the device
  return RunOnDevice(info.Env(), given, [&](kernels::CudaKernels& set) { return set.DropGraph(graph); });
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

void DefineKernels(Napi::Env env, Napi::Object exports) { NativeKernels::Define(env, exports); }

}  // namespace vkv::addon
