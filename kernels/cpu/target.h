// VKV_TARGET_BEGIN("avx2,…") … VKV_TARGET_END: functions between them are compiled for these instructions, whatever the
// rest of the program is compiled for. Macros only; headers are included before, never between.
#ifndef VKV_KERNELS_CPU_TARGET_H_
#define VKV_KERNELS_CPU_TARGET_H_

#define VKV_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define VKV_TARGET_BEGIN(features) \
  VKV_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define VKV_TARGET_END _Pragma("clang attribute pop")
#else
#define VKV_TARGET_BEGIN(features) _Pragma("GCC push_options") VKV_PRAGMA(GCC target(features))
#define VKV_TARGET_END _Pragma("GCC pop_options")
#endif

#endif  // VKV_KERNELS_CPU_TARGET_H_
