// Scene: a started simulated device with a context, a reservation and a few pages, which the probe of its rules takes
// anew for each. What it is made of must succeed.
#ifndef VKV_TEST_NATIVE_MOCK_SCENE_H_
#define VKV_TEST_NATIVE_MOCK_SCENE_H_

#include <cstdlib>
#include <memory>
#include <vector>

#include "mock/mock_device.h"

namespace vkv::mock {

inline constexpr uint64_t kPage = uint64_t{64} << 10;
inline constexpr uint64_t kReserved = 16 * kPage;

// A device with a current context and a reservation; page 0 and 1 are mapped at its begin, readable and
// writable, and page 0 again at page 4. Page 2 is mapped nowhere.
struct Scene {
  std::shared_ptr<MockDevice> device;
  CUcontext context = nullptr;
  CUdeviceptr base = 0;
  CUdeviceptr on_device = 0;  // where kernels see memory of the CPU
  CUmemGenericAllocationHandle pages[3] = {};
  CUmemAllocationProp prop = {};
  CUmemAccessDesc access = {};
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUmodule module = nullptr;  // loaded by those that need kernels
  CUfunction kernel = nullptr;
  char bytes[256] = {};

  CUdeviceptr At(uint64_t page) const { return base + page * kPage; }
};

inline void Must(CUresult result) {
  if (result != CUDA_SUCCESS) std::abort();
}

// Pages of the CPU's memory.
inline uint8_t* HostPage(size_t index) {
  alignas(4096) static uint8_t pages[3][4096];
  return pages[index];
}

// A kernel of one block that reads the 8 bytes at its parameter.
class ReadKernel final : public SimulatedKernel {
 public:
  size_t parameter_bytes() const override { return sizeof(uint64_t); }
  bool IsLaunchable(const LaunchArguments& launch) const override { return launch.grid[0] == 1; }
  std::vector<Touch> TouchesOf(const void* parameter) const override {
    return {{*static_cast<const uint64_t*>(parameter), 8, false}};
  }
  void Run(const void*) const override {}
};

inline std::shared_ptr<const SimulatedKernel> FindKernel(const char*) { return std::make_shared<ReadKernel>(); }

inline constexpr char kImage[] = ".version 7.0\n.target sm_75\n.visible .entry read(\n";

inline void LoadKernel(Scene& scene, MockDevice& device) {
  Must(device.cuModuleLoadDataEx(&scene.module, kImage, 0, nullptr, nullptr));
  Must(device.cuModuleGetFunction(&scene.kernel, scene.module, "read"));
}

inline CUresult LaunchKernel(Scene& scene, unsigned blocks, unsigned threads, void** parameters) {
  return scene.device->cuLaunchKernel(scene.kernel, blocks, 1, 1, threads, 1, 1, 0, nullptr, parameters, nullptr);
}

inline void Capture(Scene& scene, MockDevice& device, unsigned flags) {
  Must(device.cuStreamCreate(&scene.stream, flags));
  Must(device.cuStreamBeginCapture(scene.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
}

inline Scene NewScene() {
  Scene scene;
  MockOptions options;
  options.granularity_bytes = kPage;
  options.streams = StreamMode::kManual;
  options.find_kernel = FindKernel;
  if (!MockDevice::Open(options, scene.device).ok()) std::abort();
  MockDevice& device = *scene.device;
  scene.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  scene.prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  scene.access = {scene.prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  Must(device.cuInit(0));
  Must(device.cuDevicePrimaryCtxRetain(&scene.context, 0));
  Must(device.cuCtxPushCurrent(scene.context));
  Must(device.cuMemAddressReserve(&scene.base, kReserved, 0, 0, 0));
  for (auto& page : scene.pages) Must(device.cuMemCreate(&page, kPage, &scene.prop, 0));
  Must(device.cuMemMap(scene.At(0), kPage, 0, scene.pages[0], 0));
  Must(device.cuMemMap(scene.At(1), kPage, 0, scene.pages[1], 0));
  Must(device.cuMemMap(scene.At(4), kPage, 0, scene.pages[0], 0));
  Must(device.cuMemSetAccess(scene.At(0), 2 * kPage, &scene.access, 1));
  Must(device.cuMemSetAccess(scene.At(4), kPage, &scene.access, 1));
  return scene;
}

}  // namespace vkv::mock

#endif  // VKV_TEST_NATIVE_MOCK_SCENE_H_
