// Checksums of chunks of memory, rows out of it, and rows of weights as int8, as functions of the addon. For the
// environment's own thread.
#ifndef VKV_ADDON_ROWS_BINDING_H_
#define VKV_ADDON_ROWS_BINDING_H_

#include <napi.h>

namespace vkv::addon {

void DefineRows(Napi::Env env, Napi::Object exports);

}  // namespace vkv::addon

#endif  // VKV_ADDON_ROWS_BINDING_H_
