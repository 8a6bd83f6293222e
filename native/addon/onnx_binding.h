// NativeOnnx: a session of onnxruntime, seen from JavaScript. Converts and forwards; lib/onnx validates, and keeps the
// memory of a job until its answer.
#ifndef VKV_ADDON_ONNX_BINDING_H_
#define VKV_ADDON_ONNX_BINDING_H_

#include <napi.h>

#include <memory>
#include <vector>

#include "addon/arguments.h"
#include "addon/context.h"
#include "onnx/onnx_session.h"

namespace vkv::addon {

class NativeOnnx : public Napi::ObjectWrap<NativeOnnx>, public Stoppable {
 public:
  static void Define(Napi::Env env, Napi::Object exports);

  // ({library, folder, threads, model, module}, onAnswer: (id, error or undefined, text, outputs) => void,
  // driver of the device that computes, or undefined)
  explicit NativeOnnx(const Napi::CallbackInfo& info);
  ~NativeOnnx() override;

  void StopForTeardown() override;

 private:
  Napi::Value Open(const Napi::CallbackInfo& info);  // (id)
  // (id, pass or undefined, then of each tensor: whether it is an output, name, type, dims, memory or undefined)
  // A pass: {layers, spans, slots, maxTokens, cacheDtype}
  Napi::Value Run(const Napi::CallbackInfo& info);
  Napi::Value Abort(const Napi::CallbackInfo& info);  // (id)
  Napi::Value Close(const Napi::CallbackInfo& info);
  void StopSession();

  EnvContext* context_ = nullptr;  // null once torn down
  std::shared_ptr<Notifier<onnx::Answer>> answers_;
  std::unique_ptr<onnx::OnnxSession> session_;  // null once closed
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_ONNX_BINDING_H_
