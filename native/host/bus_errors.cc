#include "host/bus_errors.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>

#include "host/signal_chain.h"
#include "host/system_calls.h"

namespace vkv::host {
namespace {

// Mutable globals because signals belong to the process and their handlers get no argument. Constant-initialised and
// trivially destroyed.
constinit std::mutex mutex;  // guards changes of the list, and all below but what the handler reads
constinit std::atomic<MappedRange*> first{nullptr};
constinit bool is_installed = false;
constinit uint64_t page_bytes = 0;
constinit struct sigaction previous {};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<MappedRange*>::is_always_lock_free);

MappedRange* RangeOf(uint64_t address) {
  for (MappedRange* range = first.load(std::memory_order_acquire); range != nullptr; range = range->next) {
    if (address < range->end.load() && address >= range->begin.load()) return range;
  }
  return nullptr;
}

// In the thread that read, in the middle of anything: only a system call, and memory of its own.
bool PutZeros(uint64_t address) {
  MappedRange* const range = RangeOf(address);
  if (range == nullptr) return false;
  range->has_lost_pages.store(true);
  void* const page = reinterpret_cast<void*>(address / page_bytes * page_bytes);
  return mmap(page, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

void OnBusError(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool is_handled = info->si_code == BUS_ADRERR && PutZeros(reinterpret_cast<uint64_t>(info->si_addr));
  if (!is_handled) PassOn(previous, signal, info, context);
  errno = error;
}

Status Install() {
  if (is_installed) return Ok();
  VKV_RETURN_IF_ERROR(KeepCode(reinterpret_cast<void*>(&OnBusError)));
  page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  struct sigaction action {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGBUS, nullptr, &previous) != 0 || sigaction(SIGBUS, &action, nullptr) != 0)
    return SystemError(Code::kDriverCallFailed, "sigaction", errno);
  is_installed = true;
  return Ok();
}

}  // namespace

Status AddMappedRange(uint64_t begin, uint64_t end, MappedRange*& added) {
  const std::lock_guard lock(mutex);
  VKV_RETURN_IF_ERROR(Install());
  MappedRange* range = first.load();
  while (range != nullptr && range->end.load() != 0) range = range->next;
  const bool is_new = range == nullptr;
  if (is_new) {
    range = new MappedRange;
    range->next = first.load();
  }
  range->has_lost_pages.store(false);
  range->begin.store(begin);
  range->end.store(end);
  if (is_new) first.store(range, std::memory_order_release);
  added = range;
  return Ok();
}

void RemoveMappedRange(MappedRange* range) {
  const std::lock_guard lock(mutex);
  range->end.store(0);
}

}  // namespace vkv::host
