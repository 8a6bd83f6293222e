// Device: shared by the CUDA kernels: elements of 16 and 32 bits as floats, wide loads, addresses. Device code only.
//
// It includes no header of a toolkit; nvcc brings the built-ins. A test compiles the same sources as plain C++, with
// an emulation of threads in place of those built-ins (test/native/cuda_emulation.h): there __CUDA_ARCH__ is not
// defined.
#ifndef VKV_KERNELS_CUDA_DEVICE_H_
#define VKV_KERNELS_CUDA_DEVICE_H_

#include <type_traits>

#include "kernels/cuda/parameters.h"

#if !defined(__CUDACC__)
#include "kernels/float16.h"
#endif

// For the compiler. VKV_UNROLL: for loops over registers, which only an unrolled loop can index.
// VKV_KEEP_LOOP: for loops with a long body.
#if defined(__CUDACC__)
#define VKV_UNROLL _Pragma("unroll")
#define VKV_KEEP_LOOP _Pragma("unroll 1")
// The floats of shared memory that a launch asks for.
#define VKV_LAUNCH_SHARED(name) extern __shared__ __align__(16) float name[]
#else
#define VKV_UNROLL
#define VKV_KEEP_LOOP
#endif

#define VKV_KERNEL extern "C" __global__ void
// Bounds the registers, so that this many blocks of `threads` fit on a multiprocessor; before Ampere its shared memory
// is too small for them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define VKV_KERNEL_FOR(threads, blocks) extern "C" __global__ void __launch_bounds__(threads)
#else
#define VKV_KERNEL_FOR(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#endif

namespace vkv::kernels::cuda {

struct HalfBits {
  unsigned short bits;
};
struct BfloatBits {
  unsigned short bits;
};

__device__ inline float AsFloat(float value) { return value; }
__device__ inline float AsFloat(BfloatBits value) { return __uint_as_float(static_cast<unsigned>(value.bits) << 16); }
__device__ inline float AsFloat(HalfBits value) {
#if defined(__CUDACC__)
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
#else
  return ToFloat(Half{value.bits});
#endif
}

// Rounded to nearest, ties to even.
__device__ inline void Put(float* to, float value) { *to = value; }
__device__ inline void Put(HalfBits* to, float value) {
#if defined(__CUDACC__)
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(value));
#else
  to->bits = ToHalf(value).bits;
#endif
}
__device__ inline void Put(BfloatBits* to, float value) {
  const unsigned bits = __float_as_uint(value);
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  to->bits = static_cast<unsigned short>((is_nan ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

__device__ inline float LoadElement(uint64_t address, Dtype dtype, int64_t index) {
  switch (dtype) {
    case Dtype::kFloat32: return reinterpret_cast<const float*>(address)[index];
    case Dtype::kFloat16: return AsFloat(reinterpret_cast<const HalfBits*>(address)[index]);
    case Dtype::kBfloat16: return AsFloat(reinterpret_cast<const BfloatBits*>(address)[index]);
  }
  return 0;
}

__device__ inline void StoreElement(uint64_t address, Dtype dtype, int64_t index, float value) {
  switch (dtype) {
    case Dtype::kFloat32: return Put(reinterpret_cast<float*>(address) + index, value);
    case Dtype::kFloat16: return Put(reinterpret_cast<HalfBits*>(address) + index, value);
    case Dtype::kBfloat16: return Put(reinterpret_cast<BfloatBits*>(address) + index, value);
  }
}

// `Elements` neighbours at once: 16 bytes in one load, or one element.
template <typename T, int Elements>
struct alignas(Elements * sizeof(T)) Pack {
  T element[Elements];
};
template <typename T, int Elements>
__device__ inline Pack<T, Elements> LoadPack(uint64_t address) {
#if defined(__CUDACC__)
  if constexpr (Elements * sizeof(T) == 16) {
    const uint4 bits = __ldg(reinterpret_cast<const uint4*>(address));
    return *reinterpret_cast<const Pack<T, Elements>*>(&bits);
  }
#endif
  return *reinterpret_cast<const Pack<T, Elements>*>(address);
}

// Copies to shared memory, asynchronous where the GPU can (since Ampere) and a slot is 16 bytes; others are done at
// once. A thread sees its copies after AwaitCopies. Unless `is_there`, writes zeros and does not read `from`.
template <typename Slot>
__device__ inline void CopyAhead(Slot* to, uint64_t from, bool is_there) {
#if !defined(__CUDACC__)
  emulation::CopyAhead(to, reinterpret_cast<const void*>(from), sizeof(Slot), is_there);
#else
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(Slot) == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
                   "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(from))), "r"(is_there ? 16 : 0)
                 : "memory");
    return;
  }
#endif
  // As read-only bits: then the loads need not wait for the stores.
  using Bits =
      std::conditional_t<sizeof(Slot) == 16, uint4, std::conditional_t<sizeof(Slot) == 4, unsigned, unsigned short> >;
  static_assert(sizeof(Bits) == sizeof(Slot));
  *reinterpret_cast<Bits*>(to) = is_there ? __ldg(reinterpret_cast<const Bits*>(from)) : Bits{};
#endif
}

// Ends a group of copies, also an empty one.
__device__ inline void CommitCopies() {
#if !defined(__CUDACC__)
  emulation::CommitCopies();
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for all groups but the last `Left`.
template <int Left>
__device__ inline void AwaitCopies() {
#if !defined(__CUDACC__)
  emulation::AwaitCopies(Left);
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
#endif
}

__device__ inline uint64_t HeadAt(const Tensor& tensor, int64_t slot, int64_t token, int64_t head) {
  return tensor.address + slot * tensor.slot_bytes + token * tensor.token_bytes + head * tensor.head_bytes;
}

// Span `index` of a launch, wherever it has them.
__device__ inline Span SpanAt(const Spans& spans, int64_t index) {
  return spans.list == 0 ? spans.entries[index] : reinterpret_cast<const Span*>(spans.list)[index];
}

constexpr float kMinusInfinity = -__builtin_huge_valf();

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_CUDA_DEVICE_H_
