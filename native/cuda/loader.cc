#include "cuda/loader.h"

#include <dlfcn.h>

#include "driver.h"

namespace vkv::cuda {
namespace {

// Where the driver's library is. The second is for WSL2 distributions that do not put it on the search path.
constexpr const char* kUsualPaths[] = {"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"};

// Looks up entry points in one library, in the newest way that it supports.
class EntryPointFinder {
 public:
  explicit EntryPointFinder(void* library)
      : library_(library),
        get_v2_(reinterpret_cast<GetProcAddressV2>(dlsym(library, "cuGetProcAddress_v2"))),
        get_v1_(reinterpret_cast<GetProcAddressV1>(dlsym(library, "cuGetProcAddress"))) {}

  // nullptr when it is not there, or not in this version.
  void* Find(const char* name, int version, const char* symbol) const {
    void* entry_point = nullptr;
    if (get_v2_ != nullptr) {
      // For a missing symbol cuGetProcAddress returns success, with nullptr and the query's result.
      CUdriverProcAddressQueryResult query = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
      const CUresult result = get_v2_(name, &entry_point, version, /*flags=*/0, &query);
      return result == CUDA_SUCCESS && query == CU_GET_PROC_ADDRESS_SUCCESS ? entry_point : nullptr;
    }
    if (get_v1_ != nullptr) {
      return get_v1_(name, &entry_point, version, /*flags=*/0) == CUDA_SUCCESS ? entry_point : nullptr;
    }
    return dlsym(library_, symbol);
  }

 private:
  using GetProcAddressV2 = CUresult (*)(const char* name, void** entry_point, int version, uint64_t flags,
                                        CUdriverProcAddressQueryResult* query);
  using GetProcAddressV1 = CUresult (*)(const char* name, void** entry_point, int version, uint64_t flags);

  void* const library_;
  const GetProcAddressV2 get_v2_;
  const GetProcAddressV1 get_v1_;
};

void* OpenLibrary(const char* path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }

}  // namespace

#define VKV_DEFINE(name, version, symbol, need, parameters, arguments) \
  CUresult LoadedCuda::name parameters { return name##_ == nullptr ? CUDA_ERROR_NOT_FOUND : name##_ arguments; }
VKV_CUDA_ENTRY_POINTS(VKV_DEFINE)
#undef VKV_DEFINE

Status LoadedCuda::Load(const char* library_path, std::shared_ptr<CudaApi>& api) {
  void* library = nullptr;
  if (library_path != nullptr) {
    library = OpenLibrary(library_path);
  } else {
    for (const char* path : kUsualPaths) {
      if (library == nullptr) library = OpenLibrary(path);
    }
  }
  if (library == nullptr) {
    return Fail(Code::kDriverUnavailable, "dlopen", static_cast<int64_t>(Unavailable::kNoLibrary));
  }
  std::shared_ptr<LoadedCuda> loaded(new LoadedCuda());
  VKV_RETURN_IF_ERROR(loaded->Resolve(library));
  api = std::move(loaded);
  return Ok();
}

Status LoadedCuda::Resolve(void* library) {
  const EntryPointFinder finder(library);
  const char* missing = nullptr;
#define VKV_FIND(name, version, symbol, need, parameters, arguments)                        \
  name##_ = reinterpret_cast<CUresult(*) parameters>(finder.Find(#name, version, #symbol)); \
  if (name##_ == nullptr && Need::need == Need::kRequired && missing == nullptr) missing = #name;
  VKV_CUDA_ENTRY_POINTS(VKV_FIND)
#undef VKV_FIND
  if (missing == nullptr) return Ok();
  int driver_version = 0;
  if (cuDriverGetVersion(&driver_version) != CUDA_SUCCESS) driver_version = 0;
  return Fail(Code::kDriverTooOld, missing, driver_version);
}

}  // namespace vkv::cuda
