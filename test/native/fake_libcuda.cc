// A library that exports the CUDA driver's entry points over a simulated device, for the tests of the loader.
//
// scripts/build-fake-libcuda.cjs builds it in several ages (FAKE_CUDA_VERSION, and symbols that it hides).
// What it does wrong at run time is in the environment variable FAKE_LIBCUDA, read at every call, with commas between
// several: "stub", "no-device", "not-ready", "no-attribute", "without:<entry point>", "no-module" (no image of kernels
// is taken), or, in processes whose command line has a word in it, "abort:<entry point>:<word>", "hang:<entry
// point>:<word>" and "skip:<entry point>:<word>" (it does nothing, and says that it did).
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cuda/simulated.h"
#include "mock/mock_device.h"
#include "simulated_block_table.h"

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace vkv::cuda;  // CUDA's own names, as its library has them
using vkv::mock::MockDevice;
using vkv::mock::MockOptions;

// The package's kernels, and gpu-check's.
std::shared_ptr<const vkv::mock::SimulatedKernel> FindKernel(const char* name) {
  const auto kernel = vkv::kernels::cuda::FindSimulatedBlockTable(name);
  return kernel != nullptr ? kernel : vkv::kernels::cuda::FindSimulated(name);
}

// Lives as long as the process: a driver library is never unloaded.
MockDevice& Device() {
  static std::shared_ptr<MockDevice>* const device = [] {
    MockOptions options;
    options.name = "fake device";
    options.find_kernel = FindKernel;
    options.driver_version = FAKE_CUDA_VERSION;
    options.context_bytes = uint64_t{64} << 20;
    options.module_bytes = uint64_t{4} << 20;
    options.unmaps_holes = true;
    auto* opened = new std::shared_ptr<MockDevice>();
    if (!MockDevice::Open(options, *opened).ok()) std::abort();
    return opened;
  }();
  return **device;
}

std::vector<std::string> Faults() {
  const char* given = std::getenv("FAKE_LIBCUDA");
  std::istringstream text(given != nullptr ? given : "");
  std::vector<std::string> faults;
  for (std::string fault; std::getline(text, fault, ',');) faults.push_back(fault);
  return faults;
}

bool IsFault(const std::string& fault) {
  const std::vector<std::string> faults = Faults();
  return std::find(faults.begin(), faults.end(), fault) != faults.end();
}

// Whether a fault is "<kind>:<name>:<word>", and the word is in this process's command line.
bool IsFaultHere(const std::string& kind, const std::string& name) {
  const std::string start = kind + ":" + name + ":";
  for (const std::string& fault : Faults()) {
    if (fault.rfind(start, 0) != 0) continue;
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    const std::string line{std::istreambuf_iterator<char>(file), {}};
    if (line.find(fault.substr(start.size())) != std::string::npos) return true;
  }
  return false;
}

// What the entry point answers instead of doing its work.
CUresult Refusal(const char* name) {
  if (IsFaultHere("abort", name)) std::abort();
  if (IsFaultHere("hang", name)) {
    for (;;) pause();
  }
  if (std::strcmp(name, "cuModuleLoadDataEx") == 0 && IsFault("no-module")) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
  if (std::strcmp(name, "cuInit") == 0) {
    if (IsFault("stub")) return CUDA_ERROR_STUB_LIBRARY;
    if (IsFault("no-device")) return CUDA_ERROR_NO_DEVICE;
    if (IsFault("not-ready")) return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  if (std::strcmp(name, "cuDeviceGetAttribute") == 0 && IsFault("no-attribute")) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

}  // namespace

#define FAKE_DEFINE(name, version, symbol, need, parameters, arguments)         \
  FAKE_EXPORT CUresult symbol parameters {                                      \
    const CUresult refusal = Refusal(#name);                                    \
    if (refusal != CUDA_SUCCESS) return refusal;                                \
    return IsFaultHere("skip", #name) ? CUDA_SUCCESS : Device().name arguments; \
  }
VKV_CUDA_ENTRY_POINTS(FAKE_DEFINE)
#undef FAKE_DEFINE

namespace {

struct EntryPoint {
  const char* name;
  int version;
  void* function;
};

const EntryPoint kEntryPoints[] = {
#define FAKE_ENTRY(name, version, symbol, need, parameters, arguments) \
  {#name, version, reinterpret_cast<void*>(&symbol)},
    VKV_CUDA_ENTRY_POINTS(FAKE_ENTRY)
#undef FAKE_ENTRY
};

}  // namespace

// As the real one: to ask for a later version than the driver's is an error, and a symbol that is not there
// is none.
FAKE_EXPORT CUresult cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t /*flags*/,
                                         CUdriverProcAddressQueryResult* query) {
  if (version > FAKE_CUDA_VERSION) return CUDA_ERROR_INVALID_VALUE;
  *function = nullptr;
  *query = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  for (const EntryPoint& entry : kEntryPoints) {
    if (std::strcmp(entry.name, name) != 0 || IsFault(std::string("without:") + name)) continue;
    const bool is_enough = version >= entry.version;
    *query = is_enough ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    *function = is_enough ? entry.function : nullptr;
  }
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
  CUdriverProcAddressQueryResult query = CU_GET_PROC_ADDRESS_SUCCESS;
  const CUresult result = cuGetProcAddress_v2(name, function, version, flags, &query);
  return result == CUDA_SUCCESS && *function == nullptr ? CUDA_ERROR_NOT_FOUND : result;
}
