// Does to the host driver what Node cannot: forks the process, lowers its limits, looks at its huge pages.
// Prints one fact a line, "name value"; test/helpers/host-probe.ts compiles it with native/host and reads
// them. It judges nothing.
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <thread>

#include "host/driver_host.h"
#include "host/machine.h"

namespace {

using vkv::Code;
using vkv::DriverHost;
using vkv::PageHandle;
using vkv::Status;

constexpr uint64_t kPageBytes = uint64_t{64} << 10;

void Fact(const char* name, int64_t value) { std::printf("%s %lld\n", name, static_cast<long long>(value)); }

// The probe cannot go on without this.
void Need(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s failed: code %d, %s\n", status.call, static_cast<int>(status.code), status.result_name);
  std::_Exit(2);
}

std::unique_ptr<DriverHost> OpenDriver() {
  std::unique_ptr<DriverHost> driver;
  Need(DriverHost::Open({}, driver));
  return driver;
}

// One page of a new reservation, mapped, with 42 in its first byte.
volatile uint8_t* MapPage(DriverHost& driver) {
  uint64_t address = 0;
  PageHandle page = 0;
  Need(driver.Reserve(4 * kPageBytes, kPageBytes, address));
  Need(driver.CreatePage(kPageBytes, address, page));
  Need(driver.Map(address, kPageBytes, page));
  Need(driver.SetAccess(address, kPageBytes));
  Need(driver.Fill(address, 42, 1, 0));
  return reinterpret_cast<volatile uint8_t*>(address);
}

// Runs `body` in a child made by `fork_call`; its exit status, or the signal that ended it, negated.
template <typename Fork, typename Body>
int64_t InChild(Fork fork_call, Body body) {
  std::fflush(stdout);
  const auto child = static_cast<pid_t>(fork_call());
  if (child == 0) {
    const int result = body();
    _exit(result);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// 0 when the call was refused because this is a fork.
int IsNotRefused(const Status& status) {
  const bool is_forked =
      status.code == Code::kDriverUnavailable && status.what == static_cast<int64_t>(vkv::Unavailable::kForked);
  return is_forked ? 0 : 1;
}

void ProbeFork() {
  std::unique_ptr<DriverHost> driver = OpenDriver();
  volatile uint8_t* const byte = MapPage(*driver);
  const auto address = reinterpret_cast<uint64_t>(byte);

  Fact("child-write", InChild(fork, [&] { return *byte = 7, 0; }));
  Fact("child-read", InChild(fork, [&] { return *byte; }));
  Fact("child-read-of-hole", InChild(fork, [&] { return byte[kPageBytes]; }));
  Fact("child-call", InChild(fork, [&] { return IsNotRefused(driver->Unmap(address, kPageBytes)); }));
  Fact("child-close", InChild(fork, [&] { return driver.reset(), 0; }));
  Fact("child-own-driver", InChild(fork, [&] {
         const std::unique_ptr<DriverHost> own = OpenDriver();
         return static_cast<int>(*MapPage(*own));
       }));
  // The parent's reservation is one inaccessible mapping there; the child's own has a page, a hole and a guard.
  Fact("child-process-mappings", InChild(fork, [&] {
         const std::unique_ptr<DriverHost> own = OpenDriver();
         MapPage(*own);
         vkv::MemoryInfo memory;
         Need(own->QueryMemory(memory));
         driver.reset();
         return static_cast<int>(memory.process_mappings);
       }));
  // Without fork() no handler runs; the kernel alone tells the copy that it is one.
  Fact("copied-child-call", InChild([] { return syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr); },
                                    [&] { return IsNotRefused(driver->Enter()); }));
  Fact("vfork-child", InChild(vfork, [] { return execl("/bin/true", "true", nullptr); }));
  Fact("parent-byte", *byte);
  *byte = 43;
  Fact("parent-byte-written", *byte);
  Fact("parent-call", static_cast<int64_t>(driver->Unmap(address, kPageBytes).code));
}

// A child in which no thread is left that would let a lock go that the parent's thread had at the fork.
void ProbeForkUnderLock() {
  std::unique_ptr<DriverHost> driver = OpenDriver();
  constexpr uint64_t kPages = 4096;
  uint64_t address = 0;
  Need(driver->Reserve(kPages * kPageBytes, kPageBytes, address));
  for (uint64_t at = 0; at < kPages; ++at) {
    PageHandle page = 0;
    Need(driver->CreatePage(kPageBytes, address + at * kPageBytes, page));
    Need(driver->Map(address + at * kPageBytes, kPageBytes, page));
  }
  std::atomic<bool> is_over{false};
  std::thread locks([&] {
    while (!is_over) (void)driver->SharedRunBytes(address, kPages * kPageBytes);  // has the lock nearly all the time
  });
  int64_t worst = 0;
  for (int round = 0; round < 8; ++round) {
    if (worst != 0) break;
    worst = InChild(fork, [&] {
      alarm(300);  // also where the machine is busy
      const bool has_stream = driver->FindStream(1) != nullptr;
      driver->WaitForStreams();
      return has_stream || driver->IsShortOfMappings() || driver->SharedRunBytes(address, kPageBytes) != 0 ? 1 : 0;
    });
  }
  is_over = true;
  locks.join();
  Fact("child-under-lock", worst);
}

void Report(const char* name, const Status& status) {
  std::printf("%s-code %d\n%s-call %s\n%s-errno %s\n", name, static_cast<int>(status.code), name, status.call, name,
              status.result_name);
}

// With SIGXFSZ at its default action, which is to end the process.
void ProbeFileSize() {
  std::unique_ptr<DriverHost> driver = OpenDriver();
  const rlimit limit = {.rlim_cur = 16 * kPageBytes, .rlim_max = RLIM_INFINITY};
  setrlimit(RLIMIT_FSIZE, &limit);
  uint64_t address = 0;
  PageHandle page = 0;
  Report("reserve", driver->Reserve(1024 * kPageBytes, kPageBytes, address));
  Report("create", driver->CreatePage(kPageBytes, 0, page));
  vkv::MemoryInfo memory;
  Need(driver->QueryMemory(memory));
  Fact("live-pages", static_cast<int64_t>(memory.live_pages));
  Fact("live-reservations", static_cast<int64_t>(memory.live_reservations));
  Fact("mappings", static_cast<int64_t>(memory.mappings));
}

void ProbeOpenFiles() {
  const rlimit limit = {.rlim_cur = 3, .rlim_max = 3};
  setrlimit(RLIMIT_NOFILE, &limit);
  std::unique_ptr<DriverHost> driver;
  Report("open", DriverHost::Open({}, driver));
}

// KiB of huge pages mapped at the address, as the kernel says; -1 when it does not.
int64_t HugeKibibytesAt(uint64_t address) {
  std::ifstream smaps("/proc/self/smaps");
  bool is_here = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long long from = 0;
    unsigned long long to = 0;
    long long kibibytes = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &from, &to) == 2) is_here = from <= address && address < to;
    if (is_here && std::sscanf(line.c_str(), "ShmemPmdMapped: %lld", &kibibytes) == 1) return kibibytes;
  }
  return -1;
}

void ProbeHugePages() {
  constexpr uint64_t kLargeBytes = uint64_t{4} << 20;
  vkv::HostOptions options;
  options.huge_pages = true;
  std::unique_ptr<DriverHost> driver;
  Need(DriverHost::Open(options, driver));
  uint64_t address = 0;
  Need(driver->Reserve(4 * kLargeBytes, kLargeBytes, address));
  PageHandle pages[2];
  vkv::MemoryInfo memory;
  for (PageHandle& page : pages) Need(driver->CreatePage(kLargeBytes, 0, page));
  Need(driver->QueryMemory(memory));
  Fact("created-bytes", static_cast<int64_t>(memory.resident_bytes));
  Need(driver->Map(address, kLargeBytes, pages[1]));
  Need(driver->Map(address + kLargeBytes, kLargeBytes, pages[0]));
  Need(driver->SetAccess(address, 2 * kLargeBytes));
  const auto* const bytes = reinterpret_cast<const uint8_t*>(address);
  Fact("first-sum", std::accumulate(bytes, bytes + 2 * kLargeBytes, int64_t{0}));
  Need(driver->Fill(address, 1, kLargeBytes, 0));
  Fact("huge-kibibytes", HugeKibibytesAt(address));
  Need(driver->Unmap(address, 2 * kLargeBytes));
  Need(driver->ReleasePage(pages[1], kLargeBytes));
  Need(driver->QueryMemory(memory));
  Fact("kept-bytes", static_cast<int64_t>(memory.resident_bytes));
  Need(driver->Map(address, kLargeBytes, pages[0]));
  Need(driver->SetAccess(address, kLargeBytes));
  Fact("kept-sum", std::accumulate(bytes, bytes + kLargeBytes, int64_t{0}));

  PageHandle small = 0;
  Need(driver->CreatePage(kPageBytes, 0, small));
  Need(driver->QueryMemory(memory));
  Fact("small-bytes", static_cast<int64_t>(memory.resident_bytes) - static_cast<int64_t>(kLargeBytes));
}

// What is read under `root` instead of the machine's own files.
void ProbeMemoryRoom(const char* root) {
  const vkv::host::MemoryRoom room = vkv::host::FindMemoryRoom(root);
  Fact("limit-bytes", static_cast<int64_t>(room.limit_bytes));
  Fact("available-bytes", static_cast<int64_t>(room.available_bytes));
  Fact("headroom-bytes", static_cast<int64_t>(vkv::host::HeadroomBytes(room.limit_bytes)));
}

// Pages of 1 MiB until the driver refuses one; -1 where it does so for another reason than want of memory.
int64_t CreateAll(DriverHost& driver, PageHandle& last) {
  for (int64_t pages = 0;; ++pages) {
    const Status status = driver.CreatePage(uint64_t{1} << 20, 0, last);
    if (!status.ok()) return status.code == Code::kOutOfDeviceMemory ? pages : -1;
  }
}

void ProbeMemoryShares(const char* root) {
  vkv::HostOptions options;
  options.machine_root = root;
  std::unique_ptr<DriverHost> first;
  std::unique_ptr<DriverHost> second;
  Need(DriverHost::Open(options, first));
  Need(DriverHost::Open(options, second));
  vkv::MemoryInfo memory;
  Need(first->QueryMemory(memory));
  Fact("total-bytes", static_cast<int64_t>(memory.total_bytes));
  Fact("free-bytes", static_cast<int64_t>(memory.free_bytes));
  PageHandle page = 0;
  PageHandle refused = 0;
  Need(first->CreatePage(uint64_t{1} << 20, 0, page));
  Fact("pages-of-first", 1 + CreateAll(*first, refused));
  Fact("pages-of-second", CreateAll(*second, refused));
  Need(first->ReleasePage(page, uint64_t{1} << 20));
  Fact("pages-after-release", CreateAll(*second, refused));
  first.reset();
  Fact("second-is-alone", CreateAll(*second, refused) > 0 ? 1 : 0);

  options.memory_bytes = uint64_t{1} << 40;
  std::unique_ptr<DriverHost> sparse;
  Need(DriverHost::Open(options, sparse));
  Need(sparse->CreatePage(uint64_t{1} << 35, 0, refused));
  Fact("pages-beyond-the-machine", 1);
}

}  // namespace

int main(int argc, char** argv) {
  const char* const what = argc > 1 ? argv[1] : "";
  const char* const root = argc > 2 ? argv[2] : "";
  if (std::strcmp(what, "memory-room") == 0) return ProbeMemoryRoom(root), 0;
  if (std::strcmp(what, "memory-shares") == 0) return ProbeMemoryShares(root), 0;
  if (std::strcmp(what, "fork") == 0) return ProbeFork(), 0;
  if (std::strcmp(what, "fork-under-lock") == 0) return ProbeForkUnderLock(), 0;
  if (std::strcmp(what, "file-size") == 0) return ProbeFileSize(), 0;
  if (std::strcmp(what, "open-files") == 0) return ProbeOpenFiles(), 0;
  if (std::strcmp(what, "huge-pages") == 0) return ProbeHugePages(), 0;
  return 64;
}
