// Loading the CUDA kernels' module on a driver, on the JavaScript thread or on one of libuv's. Converts and forwards;
// lib/kernels/load-kernels.ts chooses the image.
#ifndef VKV_ADDON_MODULE_BINDING_H_
#define VKV_ADDON_MODULE_BINDING_H_

#include <napi.h>

namespace vkv::addon {

// loadKernels(driver, module, image), and loadKernelsAsync, which returns a promise.
void DefineModuleLoading(Napi::Env env, Napi::Object exports);

}  // namespace vkv::addon

#endif  // VKV_ADDON_MODULE_BINDING_H_
