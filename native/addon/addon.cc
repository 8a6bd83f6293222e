// The module: one context per Node environment, the classes, and the hook that joins threads before the environment
// goes.
#include <napi.h>

#include "addon/arena_binding.h"
#include "addon/arguments.h"
#include "addon/bindings.h"
#include "addon/cache_binding.h"
#include "addon/context.h"
#include "addon/driver_binding.h"
#include "addon/pool_binding.h"
#include "addon/store_faults_binding.h"
#include "host/huge_pages.h"

namespace {

using vkv::addon::ContextOf;
using vkv::addon::EnvContext;

// lib/device/native.ts hands over the function that makes errors: (code, call, result, resultName, what, howMany,
// driver, text) => Error.
Napi::Value SetMakeError(const Napi::CallbackInfo& info) {
  ContextOf(info.Env()).make_error = Napi::Persistent(info[0].As<Napi::Function>());
  return info.Env().Undefined();
}

// lib/device/stream-work.ts hands over the function that hears of marks: (id, error or undefined, command) => void.
Napi::Value SetOnStreamMark(const Napi::CallbackInfo& info) {
  if (!info[0].IsFunction()) return info.Env().Undefined();
  const auto tell = [](Napi::Env env, Napi::Function function, const vkv::addon::StreamMark& mark) {
    napi_value arguments[3] = {};
    const bool is_made = napi_create_double(env, static_cast<double>(mark.id), &arguments[0]) == napi_ok &&
                         napi_create_double(env, static_cast<double>(mark.failure.index), &arguments[2]) == napi_ok;
    arguments[1] = vkv::addon::MakeError(env, mark.failure.status, "host");
    if (is_made && arguments[1] != nullptr)
      (void)napi_call_function(env, env.Undefined(), function, 3, arguments, nullptr);
  };
  ContextOf(info.Env()).stream_marks.Open(info.Env(), info[0].As<Napi::Function>(), tell);
  return info.Env().Undefined();
}

// Revokes a window: its views have length 0 afterwards.
Napi::Value Detach(const Napi::CallbackInfo& info) {
  if (info[0].IsArrayBuffer()) info[0].As<Napi::ArrayBuffer>().Detach();
  return info.Env().Undefined();
}

// Where a Uint8Array's memory lies.
Napi::Value AddressOf(const Napi::CallbackInfo& info) {
  vkv::addon::Arguments given(info, "addressOf");
  const std::span<uint8_t> bytes = given.Uint8s(0);
  if (vkv::addon::ThrowIfFailed(info.Env(), given.status())) return info.Env().Undefined();
  return Napi::BigInt::New(info.Env(), reinterpret_cast<uint64_t>(bytes.data()));
}

// Memory that was not touched yet comes in huge pages where it can.
Napi::Value PreferHugePages(const Napi::CallbackInfo& info) {
  vkv::addon::Arguments given(info, "preferHugePages");
  const std::span<uint8_t> bytes = given.Uint8s(0);
  if (vkv::addon::ThrowIfFailed(info.Env(), given.status())) return info.Env().Undefined();
  vkv::host::PreferHugePages(bytes.data(), bytes.size());
  return info.Env().Undefined();
}

// What Node-API returns for an ArrayBuffer over memory of the addon: napi_ok, or napi_no_external_buffers_allowed where
// the program that embeds Node.js forbids it (Electron).
napi_status TryExternalBuffer(Napi::Env env) {
  static uint8_t memory[8];
  napi_value buffer;
  return napi_create_external_arraybuffer(env, memory, sizeof memory, nullptr, nullptr, &buffer);
}

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  auto* context = new EnvContext();
  env.SetInstanceData(context);
  env.AddCleanupHook([context] { context->StopForTeardown(); });
  exports.Set("setMakeError", Napi::Function::New<SetMakeError>(env, "setMakeError"));
  exports.Set("setOnStreamMark", Napi::Function::New<SetOnStreamMark>(env, "setOnStreamMark"));
  exports.Set("detach", Napi::Function::New<Detach>(env, "detach"));
  exports.Set("addressOf", Napi::Function::New<AddressOf>(env, "addressOf"));
  exports.Set("preferHugePages", Napi::Function::New<PreferHugePages>(env, "preferHugePages"));
  exports.Set("externalBufferStatus", static_cast<double>(TryExternalBuffer(env)));
  exports.Set("buildTool", VKV_BUILD_TOOL);
  exports.Set("version", VKV_VERSION);
  vkv::addon::NativeDriver::Define(env, exports);
  vkv::addon::NativePool::Define(env, exports);
  vkv::addon::NativeCache::Define(env, exports);
  vkv::addon::NativeArena::Define(env, exports);
  vkv::addon::DefineMappedFile(env, exports);
  vkv::addon::DefineMemory(env, exports);
  vkv::addon::DefineKernels(env, exports);
  vkv::addon::DefineDense(env, exports);
  vkv::addon::DefineMockDevice(env, exports);
  vkv::addon::DefineOnnx(env, exports);
  vkv::addon::DefineSampling(env, exports);
  vkv::addon::DefineStore(env, exports);
  vkv::addon::NativeStoreFaults::Define(env, exports);
  vkv::addon::DefineModuleLoading(env, exports);
  vkv::addon::DefineRows(env, exports);
  return exports;
}

}  // namespace

NODE_API_MODULE(virtual_kv, Init)
