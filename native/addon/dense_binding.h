// NativeDense: the dense arithmetic of a transformer, seen from JavaScript. Converts and forwards; lib/kernels
// validates shapes. A buffer is a typed array, used during the call only, or, as a BigInt, an address.
#ifndef VKV_ADDON_DENSE_BINDING_H_
#define VKV_ADDON_DENSE_BINDING_H_

#include <napi.h>

#include <memory>
#include <vector>

#include "addon/arguments.h"
#include "driver.h"
#include "host/host_stream.h"
#include "kernels/dense/dense_set.h"

namespace vkv::addon {

class NativeDense : public Napi::ObjectWrap<NativeDense> {
 public:
  static void Define(Napi::Env env, Napi::Object exports);

  // (driver, a host driver's only with a stream of it, or undefined for the CPU; {threads, instructions, stream,
  // module, cublas, workspaceBytes})
  explicit NativeDense(const Napi::CallbackInfo& info);
  ~NativeDense() override;

 private:
  Napi::Value Target(const Napi::CallbackInfo& info);
  // (input, rows, inputs, then for each product: weight, dtype, outputs, bias or undefined, output, adds)
  Napi::Value Multiply(const Napi::CallbackInfo& info);
  Napi::Value Normalize(const Napi::CallbackInfo& info);  // (input, rows, weight, width, epsilon, output, adds)
  Napi::Value Rotate(const Napi::CallbackInfo& info);     // (heads of rows, rows, heads, dim, positions, table)
  Napi::Value Gate(const Napi::CallbackInfo& info);       // (gate, up, count, output, activation)
  Napi::Value Cap(const Napi::CallbackInfo& info);        // (values, count, cap)
  Napi::Value Gather(const Napi::CallbackInfo& info);     // (table, dtype, width, tokens, rows, output, factor)
  Napi::Value Close(const Napi::CallbackInfo& info);

  Status OpenSet(Napi::Env env, Arguments& options);
  void CloseSet();
  bool is_on_device() const { return driver_ != nullptr && !stream_; }
  // Runs `call(set, entries)`, with the device current where there is one, or queues it on the host driver's stream, if
  // its arguments could be read; throws the error of a failure, kClosed included. `call` is plain data.
  template <typename Entry, typename Call>
  Napi::Value Run(Napi::Env env, const Arguments& given, std::span<const Entry> entries, Call call);

  std::shared_ptr<Driver> driver_;            // null: the CPU, without a stream
  std::shared_ptr<HostStream> stream_;        // of a host driver, else null
  std::unique_ptr<kernels::DenseSet> dense_;  // null once closed; queued commands use it
  std::vector<kernels::Product> products_;
};

}  // namespace vkv::addon

#endif  // VKV_ADDON_DENSE_BINDING_H_
