// Questions about mapping while the device works: does a call wait for the work, does it disturb the work, can two
// threads map at once.
#include <functional>
#include <thread>

#include "gpu.h"

namespace vkv::probe {
namespace {

constexpr double kWorkMs = 200;
constexpr int kRepeats = 3;

// Each call beside work that is queued on another stream, and alone. `Waited` counts the calls that came back
// only after the work was over.
void CallsBesideWork(Gpu& gpu, const char* name) {
  const size_t bytes = gpu.page_bytes();
  CudaApi& api = gpu.api();
  Work work(gpu);
  const CUstream stream = gpu.CreateStream();
  const CUdeviceptr address = gpu.Reserve(2 * bytes);
  CUdeviceptr reserved = 0;
  CUmemGenericAllocationHandle page = 0;
  struct Call {
    const char* name;
    std::function<CUresult()> make;
  };
  const CUmemAllocationProp properties = gpu.PageProperties();
  const std::vector<Call> calls = {
      {"reserve", [&] { return api.cuMemAddressReserve(&reserved, bytes, bytes, 0, 0); }},
      {"addressFree", [&] { return api.cuMemAddressFree(reserved, bytes); }},
      {"create", [&] { return api.cuMemCreate(&page, bytes, &properties, 0); }},
      {"map", [&] { return api.cuMemMap(address, bytes, 0, page, 0); }},
      {"setAccess", [&] { return gpu.SetAccess(address, bytes); }},
      {"unmap", [&] { return api.cuMemUnmap(address, bytes); }},
      {"release", [&] { return api.cuMemRelease(page); }},
  };
  std::vector<std::vector<double>> alone(calls.size()), beside(calls.size());
  std::vector<int> waited(calls.size());
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (size_t index = 0; index < calls.size(); ++index) {
      alone[index].push_back(TimeUs([&] { Must(calls[index].make(), calls[index].name); }));
    }
    for (size_t index = 0; index < calls.size(); ++index) {
      work.Start(stream, kWorkMs);
      beside[index].push_back(TimeUs([&] { Must(calls[index].make(), calls[index].name); }));
      waited[index] += gpu.IsBusy(stream) ? 0 : 1;
      Must(api.cuStreamSynchronize(stream), "cuStreamSynchronize");
    }
  }
  for (size_t index = 0; index < calls.size(); ++index) {
    Line(name)
        .Text("call", calls[index].name)
        .Text("work", work.kind())
        .Times("alone", alone[index])
        .Times("beside", beside[index])
        .Number("calls", kRepeats)
        .Number("waited", waited[index]);
  }
}

// Pages are mapped (and others remapped) in a reservation of which a running kernel reads other pages: what
// it reads stays right, and nothing faults.
void GrowthBesideAKernel(Gpu& gpu, const char* name) {
  constexpr int kRead = 32;
  constexpr int kGrown = 256;
  constexpr uint64_t kExpected = 0x5a5a5a5a5a5a5a5a;
  const size_t bytes = gpu.page_bytes();
  CudaApi& api = gpu.api();
  Line line(name);
  const Kernels kernels(gpu);
  if (!kernels.are_there()) {
    line.Result("skippedForLackOfKernels", kernels.result());
    return;
  }
  const CUstream stream = gpu.CreateStream();
  const CUdeviceptr address = gpu.Reserve((kRead + kGrown) * bytes);
  const CUdeviceptr wrong = gpu.Reserve(bytes);
  gpu.MapPages(wrong, 1);
  gpu.Fill(wrong, 0, bytes);
  gpu.MapPages(address, kRead);
  gpu.Fill(address, 0x5a, kRead * bytes);
  std::vector<CUmemGenericAllocationHandle> pages;
  for (int page = 0; page < kGrown; ++page) pages.push_back(gpu.Create(bytes));

  kernels.Watch(stream, address, kRead * bytes, 5 * kWorkMs, kExpected, wrong);
  std::vector<double> grow, remap;
  for (int page = 0; page < kGrown; ++page) {
    const CUdeviceptr place = address + (kRead + page) * bytes;
    grow.push_back(TimeUs([&] {
      Must(api.cuMemMap(place, bytes, 0, pages[page], 0), "cuMemMap");
      Must(gpu.SetAccess(place, bytes), "cuMemSetAccess");
    }));
  }
  line.Bool("kernelRanDuringGrowth", gpu.IsBusy(stream));
  for (int page = 0; page + 1 < kGrown; page += 2) {  // neighbours change places
    const CUdeviceptr place = address + (kRead + page) * bytes;
    remap.push_back(TimeUs([&] {
      Must(api.cuMemUnmap(place, 2 * bytes), "cuMemUnmap");
      Must(api.cuMemMap(place, bytes, 0, pages[page + 1], 0), "cuMemMap");
      Must(api.cuMemMap(place + bytes, bytes, 0, pages[page], 0), "cuMemMap");
      Must(gpu.SetAccess(place, 2 * bytes), "cuMemSetAccess");
    }));
  }
  line.Bool("kernelRanDuringRemapping", gpu.IsBusy(stream));
  line.Result("kernelEnded", api.cuStreamSynchronize(stream));
  uint64_t count = 0;
  line.Result("readBack", api.cuMemcpyDtoH(&count, wrong, sizeof count));
  line.Number("wrongReads", static_cast<double>(count)).Times("growOnePage", grow).Times("swapTwoPages", remap);
}

// A page is mapped after a kernel was launched, and the kernel then reads it.
void SeenByARunningKernel(Gpu& gpu, const char* name) {
  constexpr uint64_t kValue = 0x77;
  const size_t bytes = gpu.page_bytes();
  CudaApi& api = gpu.api();
  Line line(name);
  const Kernels kernels(gpu);
  if (!kernels.are_there()) {
    line.Result("skippedForLackOfKernels", kernels.result());
    return;
  }
  const CUstream stream = gpu.CreateStream();
  const CUdeviceptr address = gpu.Reserve(2 * bytes);
  gpu.MapPages(address, 1);
  gpu.Fill(address, 0, bytes);
  kernels.Await(stream, address, address + bytes, 10 * kWorkMs, address + 8);
  gpu.MapPages(address + bytes, 1);
  const uint64_t flag = 1;
  line.Result("writeThePage", api.cuMemcpyHtoD(address + bytes, &kValue, sizeof kValue));
  line.Bool("kernelRanMeanwhile", gpu.IsBusy(stream));
  line.Result("writeTheFlag", api.cuMemcpyHtoD(address, &flag, sizeof flag));
  line.Result("kernelEnded", api.cuStreamSynchronize(stream));
  uint64_t seen = 0;
  line.Result("readBack", api.cuMemcpyDtoH(&seen, address + 8, sizeof seen)).Bool("kernelSawThePage", seen == kValue);
}

// Threads that map into reservations of their own: pages per second, all together.
void ThreadsAtOnce(Gpu& gpu, const char* name) {
  constexpr int kPages = 64;
  constexpr int kRounds = 8;
  const size_t bytes = gpu.page_bytes();
  CUcontext context = nullptr;
  Must(gpu.api().cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  for (const int threads : {1, 2, 4}) {
    std::vector<std::thread> running;
    const double us = TimeUs([&] {
      for (int thread = 0; thread < threads; ++thread) {
        running.emplace_back([&] {
          Must(gpu.api().cuCtxPushCurrent(context), "cuCtxPushCurrent");
          const CUdeviceptr address = gpu.Reserve(kPages * bytes);
          std::vector<CUmemGenericAllocationHandle> pages;
          for (int page = 0; page < kPages; ++page) pages.push_back(gpu.Create(bytes));
          for (int round = 0; round < kRounds; ++round) {
            for (int page = 0; page < kPages; ++page) {
              Must(gpu.api().cuMemMap(address + page * bytes, bytes, 0, pages[page], 0), "cuMemMap");
              Must(gpu.SetAccess(address + page * bytes, bytes), "cuMemSetAccess");
            }
            Must(gpu.api().cuMemUnmap(address, kPages * bytes), "cuMemUnmap");
          }
          for (const auto page : pages) Must(gpu.api().cuMemRelease(page), "cuMemRelease");
          Must(gpu.api().cuMemAddressFree(address, kPages * bytes), "cuMemAddressFree");
        });
      }
      for (std::thread& thread : running) thread.join();
    });
    Line(name).Number("threads", threads).Number("mapsPerSecond", threads * kRounds * kPages / us * 1e6);
  }
}

}  // namespace

const std::vector<NamedQuestion> kRunningQuestions = {
    {"calls beside running work", true, CallsBesideWork},
    {"growth beside a kernel", true, GrowthBesideAKernel},
    {"a page mapped under a running kernel", true, SeenByARunningKernel},
    {"threads that map at once", true, ThreadsAtOnce},
};

}  // namespace vkv::probe
