// NativeKernels: the kernels over one cache's tensors, seen from JavaScript. Converts and forwards; lib/kernels
// validates.
//
// The tensors are bound at construction, so that a call is a layer's number, an Int32Array and two buffers: one
// crossing, nothing allocated. A buffer is a typed array or, as a BigInt, an address.
#ifndef VKV_ADDON_KERNELS_BINDING_H_
#define VKV_ADDON_KERNELS_BINDING_H_

#include <napi.h>

#include <memory>
#include <vector>

#include "addon/arguments.h"
#include "driver.h"
#include "host/host_stream.h"
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

}  // namespace vkv::addon

#endif  // VKV_ADDON_KERNELS_BINDING_H_
