// The classes and functions of the module that no other binding uses: each is declared and written in a file of its
// own, and defined here for addon.cc. For the environment's own thread.
#ifndef VKV_ADDON_BINDINGS_H_
#define VKV_ADDON_BINDINGS_H_

#include <napi.h>

namespace vkv::addon {

void DefineDense(Napi::Env env, Napi::Object exports);
void DefineKernels(Napi::Env env, Napi::Object exports);
void DefineMappedFile(Napi::Env env, Napi::Object exports);
void DefineMemory(Napi::Env env, Napi::Object exports);
void DefineMockDevice(Napi::Env env, Napi::Object exports);
void DefineModuleLoading(Napi::Env env, Napi::Object exports);
void DefineOnnx(Napi::Env env, Napi::Object exports);
void DefineRows(Napi::Env env, Napi::Object exports);
void DefineSampling(Napi::Env env, Napi::Object exports);
void DefineStore(Napi::Env env, Napi::Object exports);

}  // namespace vkv::addon

#endif  // VKV_ADDON_BINDINGS_H_
