// What lets released addons, and the GPU bundle's programs, run where the C library is older than the one they are
// linked with: 2.28 and later, as Node's own releases do. The functions that got a new version since are taken in their
// first one, and those that came later are here. Linked with --wrap for each function of wrapped.txt; what links it
// checks that nothing newer is left. Only for Linux on x86-64 and ARM64. No state.
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>

#if defined(__x86_64__)
#define VKV_FIRST "GLIBC_2.2.5"
#else
#define VKV_FIRST "GLIBC_2.17"
#endif

// Declares first_NAME as NAME in the first version there was, and defines what calls to NAME are wrapped to.
#define VKV_WRAP(result, name, parameters, arguments)      \
  extern "C" result first_##name parameters;               \
  __asm__(".symver first_" #name "," #name "@" VKV_FIRST); \
  extern "C" __attribute__((visibility("hidden"))) result __wrap_##name parameters { return first_##name arguments; }

VKV_WRAP(double, exp, (double x), (x))
VKV_WRAP(double, exp2, (double x), (x))
VKV_WRAP(double, log, (double x), (x))
VKV_WRAP(double, log2, (double x), (x))
VKV_WRAP(double, pow, (double x, double y), (x, y))
VKV_WRAP(void*, dlopen, (const char* path, int mode), (path, mode))
VKV_WRAP(void*, dlsym, (void* library, const char* name), (library, name))
VKV_WRAP(char*, dlerror, (), ())
VKV_WRAP(int, dladdr, (const void* address, void* info), (address, info))
VKV_WRAP(int, pthread_sigmask, (int how, const sigset_t* set, sigset_t* before), (how, set, before))
VKV_WRAP(int, pthread_join, (pthread_t thread, void** result), (thread, result))
VKV_WRAP(int, pthread_create,
         (pthread_t * thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument),
         (thread, attributes, run, argument))
VKV_WRAP(int, pthread_detach, (pthread_t thread), (thread))
VKV_WRAP(int, pthread_once, (pthread_once_t * once, void (*run)()), (once, run))
VKV_WRAP(int, pthread_key_create, (pthread_key_t * key, void (*destroy)(void*)), (key, destroy))
VKV_WRAP(int, __pthread_key_create, (pthread_key_t * key, void (*destroy)(void*)), (key, destroy))
VKV_WRAP(int, pthread_key_delete, (pthread_key_t key), (key))
VKV_WRAP(void*, pthread_getspecific, (pthread_key_t key), (key))
VKV_WRAP(int, pthread_setspecific, (pthread_key_t key, const void* value), (key, value))

// Younger than the first version there was, but for ARM64.
extern "C" int first_pthread_setname_np(pthread_t thread, const char* name);
#if defined(__x86_64__)
__asm__(".symver first_pthread_setname_np,pthread_setname_np@GLIBC_2.12");
#else
__asm__(".symver first_pthread_setname_np,pthread_setname_np@" VKV_FIRST);
#endif
extern "C" __attribute__((visibility("hidden"))) int __wrap_pthread_setname_np(pthread_t thread, const char* name) {
  return first_pthread_setname_np(thread, name);
}

// Functions that were macros over these until 2.33.
#if defined(__x86_64__)
constexpr int kStatVersion = 1;
#else
constexpr int kStatVersion = 0;
#endif
extern "C" int __fxstat(int version, int file, struct stat* status);
extern "C" int __fxstat64(int version, int file, struct stat64* status);
extern "C" __attribute__((visibility("hidden"))) int __wrap_fstat(int file, struct stat* status) {
  return __fxstat(kStatVersion, file, status);
}
extern "C" __attribute__((visibility("hidden"))) int __wrap_fstat64(int file, struct stat64* status) {
  return __fxstat64(kStatVersion, file, status);
}

extern "C" int __xstat(int version, const char* path, struct stat* status);
extern "C" int __lxstat(int version, const char* path, struct stat* status);
extern "C" __attribute__((visibility("hidden"))) int __wrap_stat(const char* path, struct stat* status) {
  return __xstat(kStatVersion, path, status);
}
extern "C" __attribute__((visibility("hidden"))) int __wrap_lstat(const char* path, struct stat* status) {
  return __lxstat(kStatVersion, path, status);
}

#if defined(VKV_PROGRAM)
// Until 2.34 a program brought the function that calls its constructors; newer ones still take it.
using Main = int(int, char**, char**);
using Init = void(int, char**, char**);
extern "C" int first_start(Main* main, int argc, char** argv, Init* init, void (*fini)(), void (*end)(), void* stack);
__asm__(".symver first_start,__libc_start_main@" VKV_FIRST);
extern "C" __attribute__((visibility("hidden"))) Init* __init_array_start[];
extern "C" __attribute__((visibility("hidden"))) Init* __init_array_end[];
static void CallConstructors(int argc, char** argv, char** environment) {
  for (Init** init = __init_array_start; init != __init_array_end; ++init) (*init)(argc, argv, environment);
}
extern "C" __attribute__((visibility("hidden"))) int __wrap___libc_start_main(Main* main, int argc, char** argv, Init*,
                                                                              void (*)(), void (*end)(), void* stack) {
  return first_start(main, argc, argv, CallConstructors, nullptr, end, stack);
}
#endif

// What only exceptions ask, which nothing here throws: where the code of an address is.
extern "C" __attribute__((visibility("hidden"))) int __wrap__dl_find_object(void*, void*) { return -1; }

// For std::random_device.
extern "C" __attribute__((visibility("hidden"))) uint32_t __wrap_arc4random() {
  uint32_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) abort();  // as the C library's own does
  return number;
}

// Whether the process has one thread only; "no" is always right.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;
