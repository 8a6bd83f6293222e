// Does to DriverCuda, over simulated devices, what Node cannot: forks the process, nests scopes, uses many
// threads. Prints one fact a line, "name value"; test/cuda/driver.test.ts compiles it and judges.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "cuda/driver_cuda.h"
#include "mock/mock_device.h"

namespace {

using namespace vkv;
using mock::CallKind;
using mock::MockDevice;

constexpr uint64_t kPageBytes = uint64_t{64} << 10;

void Fact(const char* name, int64_t value) { std::printf("%s %lld\n", name, static_cast<long long>(value)); }

void Must(bool is_true) {
  if (!is_true) std::abort();
}

std::shared_ptr<MockDevice> NewDevice(bool unmaps_holes = false) {
  mock::MockOptions options;
  options.granularity_bytes = kPageBytes;
  options.unmaps_holes = unmaps_holes;
  std::shared_ptr<MockDevice> device;
  Must(MockDevice::Open(options, device).ok());
  return device;
}

std::unique_ptr<Driver> OpenDriver(const std::shared_ptr<MockDevice>& device) {
  std::unique_ptr<Driver> driver;
  Must(cuda::DriverCuda::Open(device, 0, "mock", driver).ok());
  return driver;
}

int64_t Calls(MockDevice& device) {
  int64_t total = 0;
  for (const uint64_t count : device.CallCounts()) total += static_cast<int64_t>(count);
  return total;
}

// One page's life, from a reservation to nothing.
bool LiveOnce(Driver& driver) {
  const DriverScope scope(driver);
  uint64_t address = 0;
  PageHandle page = 0;
  if (!scope.status().ok() || !driver.Reserve(4 * kPageBytes, kPageBytes, address).ok()) return false;
  return driver.CreatePage(kPageBytes, address, page).ok() && driver.Map(address, kPageBytes, page).ok() &&
         driver.SetAccess(address, kPageBytes).ok() && driver.Fill(address, 7, kPageBytes, 0).ok() &&
         driver.Unmap(address, kPageBytes).ok() && driver.ReleasePage(page, kPageBytes).ok() &&
         driver.FreeReservation(address, 4 * kPageBytes).ok();
}

void ProbeFork() {
  const std::shared_ptr<MockDevice> device = NewDevice();
  std::unique_ptr<Driver> driver = OpenDriver(device);
  Must(driver->Enter().ok());  // the child begins inside a scope
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const int64_t before = Calls(*device);
    const Status entered = driver->Enter();
    PageHandle page = 0;
    const Status created = driver->CreatePage(kPageBytes, 0, page);
    driver->Leave();
    driver.reset();
    Fact("child-enter-code", static_cast<int64_t>(entered.code));
    Fact("child-enter-reason", entered.what);
    Fact("child-create-code", static_cast<int64_t>(created.code));
    Fact("child-calls", Calls(*device) - before);
    std::fflush(stdout);
    _exit(0);
  }
  int status = 0;
  Must(waitpid(child, &status, 0) == child);
  Fact("child-exit", status);
  driver->Leave();
  Fact("parent-works", LiveOnce(*driver));
  driver.reset();
  Fact("parent-contexts", static_cast<int64_t>(device->Leaks().retained_contexts));
}

void ProbeScopes() {
  const std::shared_ptr<MockDevice> first_device = NewDevice();
  const std::shared_ptr<MockDevice> second_device = NewDevice();
  const std::unique_ptr<Driver> first = OpenDriver(first_device);
  const std::unique_ptr<Driver> second = OpenDriver(second_device);
  const auto exchange_mode = [&](cuda::CUstreamCaptureMode mode) {
    (void)first_device->cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
  };
  exchange_mode(cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  {
    const DriverScope outer(*first);
    const DriverScope other(*second);
    {
      const DriverScope inner(*first);
      Fact("pushed-first", static_cast<int64_t>(first_device->Leaks().pushed_contexts));
      Fact("pushed-second", static_cast<int64_t>(second_device->Leaks().pushed_contexts));
    }
    Fact("works-after-inner", LiveOnce(*first) && LiveOnce(*second));
  }
  {
    const DriverScope scope(*first);
    Fact("mode-inside", exchange_mode(cuda::CU_STREAM_CAPTURE_MODE_RELAXED));
  }
  Fact("mode-after", exchange_mode(cuda::CU_STREAM_CAPTURE_MODE_GLOBAL));
  Fact("pushed-after", static_cast<int64_t>(first_device->Leaks().pushed_contexts));
  Fact("misuses", static_cast<int64_t>(first_device->Misuses().size() + second_device->Misuses().size()));
}

// Pages at 0, 1 and 3 of four, over a device that unmaps holes in silence: what the driver says to unmapping.
void ProbeHoles() {
  const std::shared_ptr<MockDevice> device = NewDevice(/*unmaps_holes=*/true);
  const std::unique_ptr<Driver> driver = OpenDriver(device);
  const DriverScope scope(*driver);
  uint64_t address = 0;
  Must(driver->Reserve(4 * kPageBytes, kPageBytes, address).ok());
  PageHandle pages[3] = {};
  const uint64_t places[3] = {0, 1, 3};
  for (int k = 0; k < 3; ++k)
    Must(driver->CreatePage(kPageBytes, address, pages[k]).ok() &&
         driver->Map(address + places[k] * kPageBytes, kPageBytes, pages[k]).ok());
  const auto unmap = [&](const char* name, uint64_t first, uint64_t count) {
    Fact(name, static_cast<int64_t>(driver->Unmap(address + first * kPageBytes, count * kPageBytes).code));
  };
  unmap("unmap-across-hole", 0, 4);
  unmap("unmap-hole", 2, 1);
  unmap("unmap-past-end", 3, 2);
  MemoryInfo memory;
  Must(driver->QueryMemory(memory).ok());
  Fact("mapped-after-refusals", static_cast<int64_t>(memory.mappings));
  unmap("unmap-pages", 0, 2);
  unmap("unmap-again", 0, 1);
  unmap("unmap-last", 3, 1);
  for (const PageHandle page : pages) Must(driver->ReleasePage(page, kPageBytes).ok());
  Must(driver->FreeReservation(address, 4 * kPageBytes).ok());
}

void ProbeThreads() {
  constexpr int kThreads = 8;
  constexpr int kRounds = 200;
  const std::shared_ptr<MockDevice> device = NewDevice();
  std::unique_ptr<Driver> driver = OpenDriver(device);
  device->SetLatency(CallKind::cuMemMap, 5'000);
  std::atomic<int> succeeded = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) succeeded += LiveOnce(*driver) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  Fact("lives", succeeded);
  MemoryInfo memory;
  {
    const DriverScope scope(*driver);
    Must(driver->QueryMemory(memory).ok());
  }
  Fact("live-pages", static_cast<int64_t>(memory.live_pages + memory.live_reservations + memory.mappings));
  driver.reset();
  const mock::LeakReport leaks = device->Leaks();
  Fact("leaks", !(leaks.live == cuda::Leftovers{} && leaks.left_by_drivers == cuda::Leftovers{}));
  Fact("contexts", static_cast<int64_t>(leaks.retained_contexts + leaks.pushed_contexts));
  Fact("misuses", static_cast<int64_t>(device->Misuses().size()));
}

}  // namespace

int main() {
  ProbeFork();
  ProbeScopes();
  ProbeHoles();
  ProbeThreads();
}
