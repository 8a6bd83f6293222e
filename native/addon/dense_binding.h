// NativeDense: the dense arithmetic of a transformer, seen from JavaScript. Converts and forwards; lib/kernels validates
// shapes. Buffers are typed arrays, used during the call only.
#ifndef VKV_ADDON_DENSE_BINDING_H_
#define VKV_ADDON_DENSE_BINDING_H_

#include <napi.h>

#include <memory>
#include <vector>

#include "kernels/cpu/dense_set_cpu.h"

namespace vkv::addon {

class NativeDense : public Napi::ObjectWrap<NativeDense> {
 public:
  static void Define(Napi::Env env, Napi::Object exports);

  explicit NativeDense(const Napi::CallbackInfo& info);  // (threads, instructions)

 private:
  Napi::Value Target(const Napi::CallbackInfo& info);
  // (input, rows, inputs, then for each product: weight, dtype, outputs, bias or undefined, output, adds)
  Napi::Value Multiply(const Napi::CallbackInfo& info);
  Napi::Value Normalize(const Napi::CallbackInfo& info);  // (input, rows, weight, width, epsilon, output)
  Napi::Value Rotate(const Napi::CallbackInfo& info);     // (heads of rows, rows, heads, dim, positions, table)
  Napi::Value Gate(const Napi::CallbackInfo& info);       // (gate, up, count, output)
  Napi::Value Gather(const Napi::CallbackInfo& info);     // (table, dtype, width, tokens, rows, output)

  std::unique_ptr<kernels::CpuDense> dense_;
  std::vector<kernels::Product> products_;
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_DENSE_BINDING_H_
