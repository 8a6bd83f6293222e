// Breaks every rule of the simulated device once, each on a fresh one, through its entry points: most of them
// no driver of ours can break. Prints a line for each, "title|result|misuses|changed|rule";
// test/mock/rules.test.ts compiles it with native/mock and judges.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "test/native/mock_scene.h"

namespace {

using namespace vkv::mock;

struct Breach {
  const char* title;
  CUresult (*commit)(Scene& scene, MockDevice& device);
  void (*prepare)(Scene& scene, MockDevice& device) = nullptr;  // what is not yet a breach
};

// What a misuse must not change.
bool IsSame(const LeakReport& a, const LeakReport& b) {
  return a.live == b.live && a.page_bytes == b.page_bytes && a.retained_contexts == b.retained_contexts &&
         a.pushed_contexts == b.pushed_contexts;
}

CUresult QueueKernel(MockDevice& device, std::vector<Touch> touches) {
  return device.QueueWork(0, std::move(touches)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

const Breach kBreaches[] = {
    {"init with flags", [](Scene&, MockDevice& d) { return d.cuInit(1); }},
    {"a version to nowhere", [](Scene&, MockDevice& d) { return d.cuDriverGetVersion(nullptr); }},
    {"an error name to nowhere",
     [](Scene&, MockDevice& d) { return d.cuGetErrorName(CUDA_ERROR_UNKNOWN, nullptr); }},
    {"a device that is not there",
     [](Scene&, MockDevice& d) {
       CUdevice device = 0;
       return d.cuDeviceGet(&device, 1);
     }},
    {"the memory of a device that is not there",
     [](Scene&, MockDevice& d) {
       size_t bytes = 0;
       return d.cuDeviceTotalMem(&bytes, 1);
     }},
    {"the context of a device that is not there",
     [](Scene& s, MockDevice& d) { return d.cuDevicePrimaryCtxRetain(&s.context, 1); }},
    {"push of no context", [](Scene&, MockDevice& d) { return d.cuCtxPushCurrent(nullptr); }},
    {"pop of nothing", [](Scene&, MockDevice& d) { return d.cuCtxPopCurrent(nullptr); },
     [](Scene&, MockDevice& d) { Must(d.cuCtxPopCurrent(nullptr)); }},
    {"a call without a context", [](Scene& s, MockDevice& d) { return d.cuMemUnmap(s.At(0), kPage); },
     [](Scene&, MockDevice& d) { Must(d.cuCtxPopCurrent(nullptr)); }},
    {"a call with a destroyed context", [](Scene& s, MockDevice& d) { return d.cuMemUnmap(s.At(0), kPage); },
     [](Scene&, MockDevice& d) { Must(d.cuDevicePrimaryCtxRelease(0)); }},
    {"release of a context too often", [](Scene&, MockDevice& d) { return d.cuDevicePrimaryCtxRelease(0); },
     [](Scene&, MockDevice& d) { Must(d.cuDevicePrimaryCtxRelease(0)); }},

    {"reserve with flags",
     [](Scene& s, MockDevice& d) { return d.cuMemAddressReserve(&s.base, kPage, 0, 0, 1); }},
    {"reserve nothing", [](Scene& s, MockDevice& d) { return d.cuMemAddressReserve(&s.base, 0, 0, 0, 0); }},
    {"reserve half a host page",
     [](Scene& s, MockDevice& d) { return d.cuMemAddressReserve(&s.base, 2048, 0, 0, 0); }},
    {"reserve with an odd alignment",
     [](Scene& s, MockDevice& d) { return d.cuMemAddressReserve(&s.base, kPage, 3 * kPage, 0, 0); }},
    {"free half a reservation",
     [](Scene& s, MockDevice& d) { return d.cuMemAddressFree(s.base, kReserved / 2); }},
    {"free inside a reservation",
     [](Scene& s, MockDevice& d) { return d.cuMemAddressFree(s.At(8), 8 * kPage); }},
    {"free with pages mapped", [](Scene& s, MockDevice& d) { return d.cuMemAddressFree(s.base, kReserved); }},

    {"create with flags",
     [](Scene& s, MockDevice& d) { return d.cuMemCreate(&s.pages[0], kPage, &s.prop, 1); }},
    {"create half a granule",
     [](Scene& s, MockDevice& d) { return d.cuMemCreate(&s.pages[0], kPage / 2, &s.prop, 0); }},
    {"create on another device",
     [](Scene& s, MockDevice& d) {
       s.prop.location.id = 1;
       return d.cuMemCreate(&s.pages[0], kPage, &s.prop, 0);
     }},
    {"create without properties",
     [](Scene& s, MockDevice& d) { return d.cuMemCreate(&s.pages[0], kPage, nullptr, 0); }},
    {"granularity of no kind of memory",
     [](Scene&, MockDevice& d) {
       size_t bytes = 0;
       return d.cuMemGetAllocationGranularity(&bytes, nullptr, {});
     }},
    {"release what never was", [](Scene&, MockDevice& d) { return d.cuMemRelease(12345); }},
    {"release twice", [](Scene& s, MockDevice& d) { return d.cuMemRelease(s.pages[2]); },
     [](Scene& s, MockDevice& d) { Must(d.cuMemRelease(s.pages[2])); }},
    {"retain where nothing is mapped",
     [](Scene& s, MockDevice& d) {
       return d.cuMemRetainAllocationHandle(&s.pages[0], reinterpret_cast<void*>(s.At(3)));
     }},

    {"release more often than retained", [](Scene& s, MockDevice& d) { return d.cuMemRelease(s.pages[0]); },
     [](Scene& s, MockDevice& d) {
       const uint64_t pages = d.Leaks().live.pages;
       Must(d.cuMemRelease(s.pages[0]));  // it stays mapped, and is taken up again from there
       Must(d.cuMemRetainAllocationHandle(&s.pages[0], reinterpret_cast<void*>(s.At(0))));
       if (d.Leaks().live.pages != pages) std::abort();
       Must(d.cuMemRelease(s.pages[0]));
       if (d.Leaks().live.pages != pages - 1) std::abort();
     }},

    {"map with flags", [](Scene& s, MockDevice& d) { return d.cuMemMap(s.At(3), kPage, 0, s.pages[2], 1); }},
    {"map from an offset",
     [](Scene& s, MockDevice& d) { return d.cuMemMap(s.At(3), kPage, kPage, s.pages[2], 0); }},
    {"map at half a granule",
     [](Scene& s, MockDevice& d) { return d.cuMemMap(s.At(3) + kPage / 2, kPage, 0, s.pages[2], 0); }},
    {"map what never was", [](Scene& s, MockDevice& d) { return d.cuMemMap(s.At(3), kPage, 0, 12345, 0); }},
    {"map more than the page",
     [](Scene& s, MockDevice& d) { return d.cuMemMap(s.At(6), 2 * kPage, 0, s.pages[2], 0); }},
    {"map over a page", [](Scene& s, MockDevice& d) { return d.cuMemMap(s.At(1), kPage, 0, s.pages[2], 0); }},
    {"map behind the reservation",
     [](Scene& s, MockDevice& d) { return d.cuMemMap(s.At(16), kPage, 0, s.pages[2], 0); }},

    {"access to a hole",
     [](Scene& s, MockDevice& d) { return d.cuMemSetAccess(s.At(0), 5 * kPage, &s.access, 1); }},
    {"access to nothing at all",
     [](Scene& s, MockDevice& d) { return d.cuMemSetAccess(s.At(8), kPage, &s.access, 1); }},
    {"access of no kind",
     [](Scene& s, MockDevice& d) {
       s.access.flags = static_cast<CUmemAccess_flags>(2);
       return d.cuMemSetAccess(s.At(0), kPage, &s.access, 1);
     }},
    {"access for no device",
     [](Scene& s, MockDevice& d) { return d.cuMemSetAccess(s.At(0), kPage, nullptr, 0); }},
    {"the access of a hole",
     [](Scene& s, MockDevice& d) {
       unsigned long long flags = 0;
       return d.cuMemGetAccess(&flags, &s.prop.location, s.At(3));
     }},

    {"unmap a hole", [](Scene& s, MockDevice& d) { return d.cuMemUnmap(s.At(2), kPage); }},
    {"unmap across a hole", [](Scene& s, MockDevice& d) { return d.cuMemUnmap(s.At(0), 3 * kPage); }},
    {"unmap behind the reservation",
     [](Scene& s, MockDevice& d) { return d.cuMemUnmap(s.At(15), 2 * kPage); }},
    {"unmap part of a page", [](Scene& s, MockDevice& d) { return d.cuMemUnmap(s.At(6), kPage); },
     [](Scene& s, MockDevice& d) {
       CUmemGenericAllocationHandle large = 0;
       Must(d.cuMemCreate(&large, 2 * kPage, &s.prop, 0));
       Must(d.cuMemMap(s.At(6), 2 * kPage, 0, large, 0));
     }},
    {"unmap under queued work", [](Scene& s, MockDevice& d) { return d.cuMemUnmap(s.At(0), 2 * kPage); },
     [](Scene& s, MockDevice& d) { Must(d.cuMemsetD8Async(s.At(0), 1, 8, nullptr)); }},
    {"unmap under a queued kernel", [](Scene& s, MockDevice& d) { return d.cuMemUnmap(s.At(1), kPage); },
     [](Scene& s, MockDevice& d) {
       Must(QueueKernel(d, {{s.At(1), 8, false}}));
     }},

    {"write to a hole", [](Scene& s, MockDevice& d) { return d.cuMemcpyHtoD(s.At(2) - 8, s.bytes, 16); }},
    {"write to read-only memory",
     [](Scene& s, MockDevice& d) { return d.cuMemcpyHtoD(s.At(0), s.bytes, 16); },
     [](Scene& s, MockDevice& d) {
       s.access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
       Must(d.cuMemSetAccess(s.At(0), kPage, &s.access, 1));
     }},
    {"write from nowhere", [](Scene& s, MockDevice& d) { return d.cuMemcpyHtoD(s.At(0), nullptr, 16); }},
    {"read a hole", [](Scene& s, MockDevice& d) { return d.cuMemcpyDtoH(s.bytes, s.At(2) - 8, 16); }},
    {"read memory without access",
     [](Scene& s, MockDevice& d) { return d.cuMemcpyDtoH(s.bytes, s.At(8), 16); },
     [](Scene& s, MockDevice& d) { Must(d.cuMemMap(s.At(8), kPage, 0, s.pages[2], 0)); }},
    {"read past the end of all addresses",
     [](Scene& s, MockDevice& d) { return d.cuMemcpyDtoH(s.bytes, ~0ull, 16); }},
    {"register half a page of the CPU", [](Scene&, MockDevice& d) { return d.cuMemHostRegister(HostPage(0) + 8, 4096, 0); }},
    {"register the memory of the device",
     [](Scene& s, MockDevice& d) { return d.cuMemHostRegister(reinterpret_cast<void*>(s.At(0)), 4096, 0); }},
    {"register with flags", [](Scene&, MockDevice& d) { return d.cuMemHostRegister(HostPage(0), 4096, 1); }},
    {"register what is registered in part", [](Scene&, MockDevice& d) { return d.cuMemHostRegister(HostPage(0), 3 * 4096, 0); },
     [](Scene&, MockDevice& d) { Must(d.cuMemHostRegister(HostPage(1), 4096, 0)); }},
    {"unregister inside a registration", [](Scene&, MockDevice& d) { return d.cuMemHostUnregister(HostPage(1)); },
     [](Scene&, MockDevice& d) { Must(d.cuMemHostRegister(HostPage(0), 2 * 4096, 0)); }},
    {"unregister twice", [](Scene&, MockDevice& d) { return d.cuMemHostUnregister(HostPage(0)); },
     [](Scene&, MockDevice& d) {
       Must(d.cuMemHostRegister(HostPage(0), 4096, 0));
       Must(d.cuMemHostUnregister(HostPage(0)));
     }},
    {"unregister under a queued copy", [](Scene&, MockDevice& d) { return d.cuMemHostUnregister(HostPage(0)); },
     [](Scene& s, MockDevice& d) {
       Must(d.cuMemHostRegister(HostPage(0), 4096, 0));
       Must(d.cuMemcpyDtoHAsync(HostPage(0), s.At(0), 16, nullptr));
     }},
    {"find what was registered for copies only",
     [](Scene& s, MockDevice& d) { return d.cuMemHostGetDevicePointer(&s.on_device, HostPage(0), 0); },
     [](Scene&, MockDevice& d) { Must(d.cuMemHostRegister(HostPage(0), 4096, 0)); }},
    {"find the middle of a registration",
     [](Scene& s, MockDevice& d) { return d.cuMemHostGetDevicePointer(&s.on_device, HostPage(0) + 8, 0); },
     [](Scene&, MockDevice& d) { Must(d.cuMemHostRegister(HostPage(0), 4096, vkv::cuda::kHostRegisterDeviceMap)); }},
    {"find a registration with flags",
     [](Scene& s, MockDevice& d) { return d.cuMemHostGetDevicePointer(&s.on_device, HostPage(0), 1); },
     [](Scene&, MockDevice& d) { Must(d.cuMemHostRegister(HostPage(0), 4096, vkv::cuda::kHostRegisterDeviceMap)); }},
    {"a kernel in memory of the CPU that it was not told of", [](Scene&, MockDevice& d) { return d.cuCtxSynchronize(); },
     [](Scene&, MockDevice& d) {
       Must(d.cuMemHostRegister(HostPage(0), 4096, vkv::cuda::kHostRegisterDeviceMap));
       Must(QueueKernel(d, {{reinterpret_cast<uint64_t>(HostPage(0)), 8, true}}));
     }},
    {"a kernel past the end of memory of the CPU", [](Scene&, MockDevice& d) { return d.cuCtxSynchronize(); },
     [](Scene& s, MockDevice& d) {
       Must(d.cuMemHostRegister(HostPage(0), 4096, vkv::cuda::kHostRegisterDeviceMap));
       Must(d.cuMemHostGetDevicePointer(&s.on_device, HostPage(0), 0));
       Must(QueueKernel(d, {{s.on_device + 4092, 8, true}}));
     }},
    {"unregister under a queued kernel", [](Scene&, MockDevice& d) { return d.cuMemHostUnregister(HostPage(0)); },
     [](Scene& s, MockDevice& d) {
       Must(d.cuMemHostRegister(HostPage(0), 4096, vkv::cuda::kHostRegisterDeviceMap));
       Must(d.cuMemHostGetDevicePointer(&s.on_device, HostPage(0), 0));
       Must(QueueKernel(d, {{s.on_device, 8, true}}));
     }},
    {"read across the end of a registration",
     [](Scene& s, MockDevice& d) { return d.cuMemcpyDtoHAsync(HostPage(1) - 8, s.At(0), 16, nullptr); },
     [](Scene&, MockDevice& d) { Must(d.cuMemHostRegister(HostPage(0), 4096, 0)); }},
    {"read into two registrations",
     [](Scene& s, MockDevice& d) { return d.cuMemcpyDtoHAsync(HostPage(1) - 8, s.At(0), 16, nullptr); },
     [](Scene&, MockDevice& d) {
       Must(d.cuMemHostRegister(HostPage(0), 4096, 0));
       Must(d.cuMemHostRegister(HostPage(1), 4096, 0));
     }},
    {"copy from a hole",
     [](Scene& s, MockDevice& d) { return d.cuMemcpyDtoDAsync(s.At(0), s.At(2), 16, nullptr); }},
    {"copy onto itself",
     [](Scene& s, MockDevice& d) { return d.cuMemcpyDtoDAsync(s.At(0), s.At(0) + 8, 16, nullptr); }},
    {"copy onto its alias",
     [](Scene& s, MockDevice& d) { return d.cuMemcpyDtoDAsync(s.At(0), s.At(4), 16, nullptr); }},
    {"fill a hole", [](Scene& s, MockDevice& d) { return d.cuMemsetD8Async(s.At(3), 0, 16, nullptr); }},
    {"a kernel in a hole", [](Scene&, MockDevice& d) { return d.cuCtxSynchronize(); },
     [](Scene& s, MockDevice& d) {
       Must(QueueKernel(d, {{s.At(3), 8, false}}));
     }},
    {"a kernel through two addresses", [](Scene&, MockDevice& d) { return d.cuCtxSynchronize(); },
     [](Scene& s, MockDevice& d) {
       Must(QueueKernel(d, {{s.At(0), 8, true}, {s.At(4), 8, false}}));
     }},

    {"a module that is no image",
     [](Scene& s, MockDevice& d) { return d.cuModuleLoadDataEx(&s.module, "not an image", 0, nullptr, nullptr); }},
    {"the end of a module that never was",
     [](Scene&, MockDevice& d) { return d.cuModuleUnload(reinterpret_cast<CUmodule>(12345)); }},
    {"a kernel of a module that was unloaded",
     [](Scene& s, MockDevice&) {
       void* parameters[] = {&s.base};
       return LaunchKernel(s, 1, 1, parameters);
     },
     [](Scene& s, MockDevice& d) {
       LoadKernel(s, d);
       Must(d.cuModuleUnload(s.module));
     }},
    {"a kernel without parameters", [](Scene& s, MockDevice&) { return LaunchKernel(s, 1, 1, nullptr); }, LoadKernel},
    {"a kernel with another grid than it needs",
     [](Scene& s, MockDevice&) {
       void* parameters[] = {&s.base};
       return LaunchKernel(s, 2, 1, parameters);
     },
     LoadKernel},
    {"a kernel with more threads than a block can have",
     [](Scene& s, MockDevice&) {
       void* parameters[] = {&s.base};
       return LaunchKernel(s, 1, 1025, parameters);
     },
     LoadKernel},
    {"a stream that never was",
     [](Scene&, MockDevice& d) { return d.cuStreamSynchronize(reinterpret_cast<CUstream>(12345)); }},
    {"a fill on a destroyed stream",
     [](Scene& s, MockDevice& d) { return d.cuMemsetD8Async(s.At(0), 0, 16, s.stream); },
     [](Scene& s, MockDevice& d) {
       Must(d.cuStreamCreate(&s.stream, 0));
       Must(d.cuStreamDestroy(s.stream));
     }},
    {"the end of the default stream", [](Scene&, MockDevice& d) { return d.cuStreamDestroy(nullptr); }},
    {"an event that never was",
     [](Scene&, MockDevice& d) { return d.cuEventQuery(reinterpret_cast<CUevent>(12345)); }},

    {"a capture of the default stream",
     [](Scene&, MockDevice& d) { return d.cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED); }},
    {"the end of a capture that never began",
     [](Scene& s, MockDevice& d) {
       CUgraph graph = nullptr;
       return d.cuStreamEndCapture(s.stream, &graph);
     },
     [](Scene& s, MockDevice& d) { Must(d.cuStreamCreate(&s.stream, CU_STREAM_NON_BLOCKING)); }},
    {"a wait for a stream that is captured", [](Scene& s, MockDevice& d) { return d.cuStreamSynchronize(s.stream); },
     [](Scene& s, MockDevice& d) { Capture(s, d, CU_STREAM_NON_BLOCKING); }},
    {"a wait for everything while a stream is captured", [](Scene&, MockDevice& d) { return d.cuCtxSynchronize(); },
     [](Scene& s, MockDevice& d) { Capture(s, d, CU_STREAM_NON_BLOCKING); }},
    {"the default stream beside the capture of a blocking one",
     [](Scene& s, MockDevice& d) { return d.cuMemsetD8Async(s.At(0), 0, 16, nullptr); },
     [](Scene& s, MockDevice& d) { Capture(s, d, CU_STREAM_DEFAULT); }},
    {"a wait for the default stream beside the capture of a blocking one",
     [](Scene&, MockDevice& d) { return d.cuStreamSynchronize(nullptr); },
     [](Scene& s, MockDevice& d) { Capture(s, d, CU_STREAM_DEFAULT); }},
    {"an event of the default stream beside the capture of a blocking one",
     [](Scene& s, MockDevice& d) { return d.cuEventRecord(s.event, nullptr); },
     [](Scene& s, MockDevice& d) {
       Must(d.cuEventCreate(&s.event, /*flags=*/0));
       Capture(s, d, CU_STREAM_DEFAULT);
     }},
    {"a copy on no stream beside the capture of a blocking one",
     [](Scene& s, MockDevice& d) { return d.cuMemcpyHtoD(s.At(0), s.bytes, 16); },
     [](Scene& s, MockDevice& d) { Capture(s, d, CU_STREAM_DEFAULT); }},
    {"a read on a stream that is captured",
     [](Scene& s, MockDevice& d) { return d.cuMemcpyDtoHAsync(s.bytes, s.At(0), 16, s.stream); },
     [](Scene& s, MockDevice& d) { Capture(s, d, CU_STREAM_NON_BLOCKING); }},
    {"the launch of a graph that never was",
     [](Scene&, MockDevice& d) { return d.cuGraphLaunch(reinterpret_cast<CUgraphExec>(12345), nullptr); }},
};

void Report(const char* title, MockDevice& device, CUresult result, const LeakReport& before) {
  const std::vector<Misuse> misuses = device.Misuses();
  const char* rule = misuses.empty() ? "" : misuses.back().rule;
  std::printf("%s|%d|%zu|%d|%s\n", title, result, misuses.size(), IsSame(before, device.Leaks()) ? 0 : 1, rule);
}

// The breach that needs a device before cuInit.
void ReportCallBeforeInit() {
  std::shared_ptr<MockDevice> device;
  if (!MockDevice::Open({}, device).ok()) std::abort();
  const LeakReport before = device->Leaks();
  int count = 0;
  Report("a call before init", *device, device->cuDeviceGetCount(&count), before);
}

}  // namespace

int main() {
  for (const Breach& breach : kBreaches) {
    Scene scene = NewScene();
    if (breach.prepare != nullptr) breach.prepare(scene, *scene.device);
    const LeakReport before = scene.device->Leaks();
    const CUresult result = breach.commit(scene, *scene.device);
    Report(breach.title, *scene.device, result, before);
  }
  ReportCallBeforeInit();
}
