// Questions about host memory and other processes: how fast pinned and pageable memory is copied, by block size, with
// and without registering a memory file, and whether a page can be given to another process by its file descriptor.
//
// The entry points that only these need are looked up here; where the library lacks one (the simulated device does) the
// question says so.
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "gpu.h"

namespace vkv::probe {
namespace {

constexpr size_t kMostBytes = size_t{64} << 20;
constexpr int kRounds = 5;
constexpr unsigned kPosixDescriptor = 1;  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
constexpr uint8_t kMark = 0x6b;

// Null when the library does not have it.
template <typename Function>
Function* Find(const Gpu& gpu, const char* symbol) {
  void* const library = dlopen(gpu.library(), RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, symbol));
}

double GBPerSecond(size_t bytes, double us) { return static_cast<double>(bytes) / us / 1e3; }

void CopiesByBlock(Gpu& gpu, const char* name) {
  auto* const to_device = Find<CUresult(CUdeviceptr, const void*, size_t, CUstream)>(gpu, "cuMemcpyHtoDAsync_v2");
  auto* const to_host = Find<CUresult(void*, CUdeviceptr, size_t, CUstream)>(gpu, "cuMemcpyDtoHAsync_v2");
  auto* const register_host = Find<CUresult(void*, size_t, unsigned)>(gpu, "cuMemHostRegister_v2");
  if (to_device == nullptr || to_host == nullptr || register_host == nullptr) {
    Line(name).Text("skipped", "the library lacks cuMemHostRegister or asynchronous copies");
    return;
  }
  const CUstream stream = gpu.CreateStream();
  const size_t pages = kMostBytes / gpu.page_bytes();
  const CUdeviceptr device = gpu.Reserve(kMostBytes);
  gpu.MapPages(device, static_cast<int>(pages));
  for (const bool is_registered : {false, true}) {
    const int file = memfd_create("gpu-check", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, kMostBytes) != 0) return (void)Line(name).Text("skipped", "no memory file");
    void* const host = mmap(nullptr, kMostBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (host == MAP_FAILED) return (void)Line(name).Text("skipped", "no mapping of a memory file");
    std::memset(host, 1, kMostBytes);
    double register_us = 0;
    if (is_registered) {
      CUresult result = CUDA_SUCCESS;
      register_us = TimeUs([&] { result = register_host(host, kMostBytes, /*flags=*/0); });
      if (result != CUDA_SUCCESS) {
        Line(name).Result("registerAMemoryFile", result);
        continue;
      }
    }
    for (size_t bytes = 64 << 10; bytes <= kMostBytes; bytes *= 4) {
      std::vector<double> up, down;
      for (int round = 0; round < kRounds; ++round) {
        const auto timed = [&](std::vector<double>& times, const auto& copy) {
          times.push_back(TimeUs([&] {
            for (size_t at = 0; at < kMostBytes; at += bytes) Must(copy(at), "cuMemcpyAsync");
            Must(gpu.api().cuStreamSynchronize(stream), "cuStreamSynchronize");
          }));
        };
        timed(up, [&](size_t at) { return to_device(device + at, static_cast<char*>(host) + at, bytes, stream); });
        timed(down, [&](size_t at) { return to_host(static_cast<char*>(host) + at, device + at, bytes, stream); });
      }
      std::sort(up.begin(), up.end());
      std::sort(down.begin(), down.end());
      Line(name)
          .Text("memory", is_registered ? "memory file, registered" : "memory file")
          .Number("blockBytes", static_cast<double>(bytes))
          .Number("toDeviceGBPerS", GBPerSecond(kMostBytes, up[kRounds / 2]))
          .Number("toHostGBPerS", GBPerSecond(kMostBytes, down[kRounds / 2]))
          .Number("registerUs", register_us);
    }
    munmap(host, kMostBytes);
    close(file);
  }
}

void ShareByDescriptor(Gpu& gpu, const char* name) {
  auto* const export_page = Find<CUresult(void*, CUmemGenericAllocationHandle, unsigned, unsigned long long)>(
      gpu, "cuMemExportToShareableHandle");
  if (export_page == nullptr) {
    Line(name).Text("skipped", "the library lacks cuMemExportToShareableHandle");
    return;
  }
  CUmemAllocationProp properties = gpu.PageProperties();
  properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(kPosixDescriptor);
  CUmemGenericAllocationHandle page = 0;
  {
    Line line(name);
    const CUresult created = gpu.api().cuMemCreate(&page, gpu.page_bytes(), &properties, 0);
    line.Result("createForExport", created);
    if (created != CUDA_SUCCESS) return;
    const CUdeviceptr address = gpu.Reserve(gpu.page_bytes());
    Must(gpu.api().cuMemMap(address, gpu.page_bytes(), 0, page, 0), "cuMemMap");
    Must(gpu.SetAccess(address, gpu.page_bytes()), "cuMemSetAccess");
    gpu.Fill(address, kMark, gpu.page_bytes());
    int descriptor = -1;
    CUresult exported = CUDA_SUCCESS;
    const double us = TimeUs([&] { exported = export_page(&descriptor, page, kPosixDescriptor, 0); });
    line.Result("export", exported).Number("exportUs", us);
    if (exported != CUDA_SUCCESS) return;
    const std::string number = std::to_string(descriptor);
    std::string self = "/proc/self/exe";
    std::string flag = "--import";
    std::string library = gpu.library();
    char* arguments[] = {self.data(), flag.data(), const_cast<char*>(number.c_str()), library.data(), nullptr};
    pid_t child = 0;
    fcntl(descriptor, F_SETFD, 0);  // stays open in the other process
    const int spawned = posix_spawn(&child, self.c_str(), nullptr, nullptr, arguments, environ);
    int status = -1;
    if (spawned == 0) waitpid(child, &status, 0);
    line.Bool("otherProcessReadThePage", spawned == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

}  // namespace

// The other process of "a page shared by its descriptor": exit code 0 when it finds what the first wrote.
int ImportPage(Gpu& gpu, int descriptor) {
  auto* const import_page =
      Find<CUresult(CUmemGenericAllocationHandle*, void*, unsigned)>(gpu, "cuMemImportFromShareableHandle");
  if (import_page == nullptr) return 1;
  CUmemGenericAllocationHandle page = 0;
  void* const handle = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
  if (import_page(&page, handle, kPosixDescriptor) != CUDA_SUCCESS) return 1;
  const CUdeviceptr address = gpu.Reserve(gpu.page_bytes());
  if (gpu.api().cuMemMap(address, gpu.page_bytes(), 0, page, 0) != CUDA_SUCCESS) return 1;
  if (gpu.SetAccess(address, gpu.page_bytes()) != CUDA_SUCCESS) return 1;
  return gpu.ByteAt(address + gpu.page_bytes() - 1) == kMark ? 0 : 1;
}

const std::vector<NamedQuestion> kTransferQuestions = {
    {"copies by block", true, CopiesByBlock},
    {"a page shared by its descriptor", true, ShareByDescriptor},
};

}  // namespace vkv::probe
