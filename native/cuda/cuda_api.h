// CudaApi: the CUDA driver as a table of entry points, one virtual method for each, under CUDA's own names.
//
// LoadedCuda fills it from libcuda.so.1; the mock implements the table itself, so that tests run all shipped code above
// it, DriverCuda included. An entry point that the library lacks returns CUDA_ERROR_NOT_FOUND. Threads: any, under
// CUDA's own rules about contexts. Owned by the drivers opened over it (shared_ptr).
#ifndef VKV_CUDA_CUDA_API_H_
#define VKV_CUDA_CUDA_API_H_

#include <cstdint>

#include "cuda/entry_points.h"
#include "cuda/types.h"

namespace vkv::cuda {

// Properties that no entry point returns.
struct CudaTraits {
  bool has_memory = true;        // false: pages are accounted, but there are no bytes in them (mock)
  bool has_host_access = false;  // the CPU may dereference mapped addresses (mock with real backing)
  bool unmaps_holes = true;      // cuMemUnmap passes over addresses without a page in silence (false: the mock)
};

// What a driver still had when it was closed, and gives back then.
struct Leftovers {
  uint64_t reservations = 0;
  uint64_t mappings = 0;
  uint64_t pages = 0;
  uint64_t streams = 0;
  uint64_t events = 0;
  uint64_t registrations = 0;  // of the CPU's memory

  bool operator==(const Leftovers&) const = default;
};

class CudaApi {
 public:
  virtual ~CudaApi() = default;

  virtual CudaTraits traits() const { return {}; }
  // The physical memory that the created pages really hold now; CUDA's pages hold theirs from the start.
  virtual uint64_t ResidentBytes(uint64_t created_bytes) { return created_bytes; }
  // Called before a driver over this table gives back what its owner forgot. A simulated device records it as
  // a leak.
  virtual void NoteLeftovers(const Leftovers& leftovers) { (void)leftovers; }

#define VKV_DECLARE(name, version, symbol, need, parameters, arguments) virtual CUresult name parameters = 0;
  VKV_CUDA_ENTRY_POINTS(VKV_DECLARE)
#undef VKV_DECLARE
};

}  // namespace vkv::cuda

#endif  // VKV_CUDA_CUDA_API_H_
