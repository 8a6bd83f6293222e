// What a handler of a signal leaves to those before it, and how it stays in the process. Threads: any.
#ifndef VKV_HOST_SIGNAL_CHAIN_H_
#define VKV_HOST_SIGNAL_CHAIN_H_

#include <dlfcn.h>
#include <signal.h>

#include "status.h"

namespace vkv::host {

// The signal is not this handler's: the one before it has it. Where there was none, the access is done again and ends
// the process, and a signal that was sent is sent again.
inline void PassOn(const struct sigaction& previous, int signal, siginfo_t* info, void* context) {
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(signal, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) return previous.sa_handler(signal);
  (void)sigaction(signal, &previous, nullptr);
  if (info->si_code <= 0) (void)raise(signal);
}

// Node unloads the addon with the last environment that has it, and the handler stays.
inline Status KeepCode(void* handler) {
  Dl_info info{};
  if (dladdr(handler, &info) == 0 || dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE) == nullptr)
    return Fail(Code::kDriverCallFailed, "dlopen");
  return Ok();
}

}  // namespace vkv::host

#endif  // VKV_HOST_SIGNAL_CHAIN_H_
