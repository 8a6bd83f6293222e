// CUDA's threads on a CPU, well enough to run the kernels of this package as they are written: a block's threads are
// fibers of one thread, switched at __syncthreads and at shuffles, with CUDA's rules: a barrier waits for every thread
// that has not returned, a shuffle for every lane of the warp. A thread that waits for ever ends the program with a
// message.
//
// For tests: it shows that indices, barriers and arithmetic are right, and says nothing of speed. Shared memory is one
// static object for each __shared__ variable, filled with NaN between blocks only where a launch asks for it.
#ifndef VKV_TEST_NATIVE_CUDA_EMULATION_H_
#define VKV_TEST_NATIVE_CUDA_EMULATION_H_

#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define VKV_LAUNCH_SHARED(name) float* const name = emulation::state.launch_shared.data()

struct uint3 {
  unsigned x, y, z;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

namespace emulation {

constexpr unsigned kWarp = 32;
constexpr size_t kStackBytes = 256 << 10;

enum class Wait { kNothing, kWarp, kBlock, kDone };

// A copy that goes on by itself, and is seen when its thread waits for its group.
struct Copy {
  void* to;
  const void* from;
  size_t bytes;
  bool is_there;
  unsigned group;
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Wait wait = Wait::kNothing;
  unsigned shared[2][6] = {};  // what other lanes may read, by parity, so that a lane may be one exchange ahead
  unsigned exchanges = 0;
  std::vector<Copy> copies;
  unsigned copy_groups = 0;  // that were ended
};

struct State {
  uint3 block_index = {}, block_dim = {}, grid_dim = {};
  unsigned thread = 0;
  ucontext_t scheduler;
  std::vector<Fiber> fibers;
  std::vector<float> launch_shared;
  std::function<void()> kernel;
};
inline State state;

[[noreturn]] inline void Fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

inline uint3 ThreadIndex() { return {state.thread, 0, 0}; }

inline void WaitFor(Wait wait) {
  Fiber& fiber = state.fibers[state.thread];
  fiber.wait = wait;
  swapcontext(&fiber.context, &state.scheduler);
}

inline void Body() {
  state.kernel();
  if (!state.fibers[state.thread].copies.empty()) Fail("a thread ends before its copies are there");
  WaitFor(Wait::kDone);
}

// Until a copy is there its place holds what makes any result wrong.
inline void CopyAhead(void* to, const void* from, size_t bytes, bool is_there) {
  Fiber& fiber = state.fibers[state.thread];
  if (reinterpret_cast<uintptr_t>(to) % bytes != 0) Fail("a copy to an address that is not aligned");
  if (is_there && reinterpret_cast<uintptr_t>(from) % bytes != 0) Fail("a copy from an address that is not aligned");
  std::memset(to, 0xff, bytes);
  fiber.copies.push_back({to, from, bytes, is_there, fiber.copy_groups});
}
inline void CommitCopies() { ++state.fibers[state.thread].copy_groups; }
inline void AwaitCopies(unsigned left) {
  Fiber& fiber = state.fibers[state.thread];
  const auto is_under_way = [&](const Copy& copy) { return copy.group + left >= fiber.copy_groups; };
  for (const Copy& copy : fiber.copies) {
    if (is_under_way(copy)) continue;
    if (copy.is_there)
      std::memcpy(copy.to, copy.from, copy.bytes);
    else
      std::memset(copy.to, 0, copy.bytes);
  }
  std::erase_if(fiber.copies, std::not_fn(is_under_way));
}

// Resumes the threads whose barrier is complete; returns whether there were any.
inline bool Release() {
  bool is_released = false;
  const auto all = [&](size_t begin, size_t end, Wait wait) {
    size_t waiting = 0;
    for (size_t i = begin; i < end; ++i) {
      if (state.fibers[i].wait == wait)
        ++waiting;
      else if (wait == Wait::kWarp || state.fibers[i].wait != Wait::kDone)
        return;
    }
    if (waiting == 0) return;
    is_released = true;
    for (size_t i = begin; i < end; ++i) {
      if (state.fibers[i].wait == wait) state.fibers[i].wait = Wait::kNothing;
    }
  };
  const size_t threads = state.fibers.size();
  for (size_t warp = 0; warp < threads; warp += kWarp) all(warp, std::min(threads, warp + kWarp), Wait::kWarp);
  all(0, threads, Wait::kBlock);
  return is_released;
}

inline void RunBlock() {
  for (Fiber& fiber : state.fibers) {
    fiber.wait = Wait::kNothing;
    fiber.exchanges = 0;
    fiber.copy_groups = 0;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, Body, 0);
  }
  do {
    bool is_done = true;
    for (state.thread = 0; state.thread < state.fibers.size(); ++state.thread) {
      Fiber& fiber = state.fibers[state.thread];
      if (fiber.wait == Wait::kNothing) swapcontext(&state.scheduler, &fiber.context);
      is_done = is_done && fiber.wait == Wait::kDone;
    }
    if (is_done) return;
  } while (Release());
  Fail("threads of a block wait for each other for ever");
}

// Shows words to the lanes of the warp, and waits until all have. Where theirs are: Shared of a thread, with the same
// parity.
inline unsigned Exchange(std::initializer_list<unsigned> words) {
  Fiber& fiber = state.fibers[state.thread];
  const unsigned parity = fiber.exchanges++ % 2;
  std::copy(words.begin(), words.end(), fiber.shared[parity]);
  WaitFor(Wait::kWarp);
  return parity;
}

// Adds as tensor cores do, that is worse than floats: the sum and the products are cut off, towards zero, below the
// 24th bit of the largest of them (Fasi et al., Numerical behavior of NVIDIA tensor cores, 2021; the newer have a bit
// or two more).
inline float AddCut(float sum, const float (&products)[16]) {
  int exponent = -126;
  const auto see = [&](float value) {
    if (value != 0 && std::isfinite(value)) exponent = std::max(exponent, std::ilogb(value));
  };
  double exact = sum;
  see(sum);
  for (const float product : products) see(product), exact += product;
  if (!std::isfinite(exact)) return static_cast<float>(exact);
  const auto cut = [&](double value) { return std::trunc(std::ldexp(value, 23 - exponent)); };
  double total = cut(sum);
  for (const float product : products) total += cut(product);
  const int beyond = total == 0 ? 0 : std::max(0, std::ilogb(total) - 23);  // of what a float holds
  return static_cast<float>(std::ldexp(std::trunc(std::ldexp(total, -beyond)), beyond + exponent - 23));
}

// A warp's sums [16, 8] += a [16, 16] · b [16, 8] of 16-bit numbers, laid out over the lanes as mma.m16n8k16 has them:
// of the PTX manual's fragments, elements 2i and 2i + 1 are word i.
template <typename T>
void MultiplyTile(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const unsigned thread = state.thread;
  const unsigned parity = Exchange({a[0], a[1], a[2], a[3], b[0], b[1]});
  const auto element = [&](unsigned lane, unsigned word, unsigned half) {
    const unsigned bits = state.fibers[thread / kWarp * kWarp + lane].shared[parity][word] >> (16 * half);
    return AsFloat(T{static_cast<unsigned short>(bits)});
  };
  for (unsigned c = 0; c < 4; ++c) {
    const unsigned group = thread % kWarp / 4;  // the row, of its half of the rows
    const unsigned column = thread % 4 * 2 + c % 2;
    float products[16];
    for (unsigned k = 0; k < 16; ++k) {
      products[k] =
          element(group * 4 + k % 8 / 2, k / 8 * 2 + c / 2, k % 2) * element(column * 4 + k % 8 / 2, 4 + k / 8, k % 2);
    }
    sums[c] = AddCut(sums[c], products);
  }
}

// Runs kernel(parameters) for every block of the grid, one after another.
template <typename Parameters>
void Launch(void (*kernel)(Parameters), uint3 grid, unsigned threads, size_t shared_bytes,
            const Parameters& parameters) {
  state.grid_dim = grid;
  state.block_dim = {threads, 1, 1};
  state.launch_shared.assign(shared_bytes / sizeof(float), NAN);
  state.kernel = [&] { kernel(parameters); };
  if (state.fibers.size() != threads) {
    state.fibers = std::vector<Fiber>(threads);
    for (Fiber& fiber : state.fibers) fiber.stack.reset(new char[kStackBytes]);
  }
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        state.block_index = {x, y, z};
        RunBlock();
      }
    }
  }
}

}  // namespace emulation

#define threadIdx (emulation::ThreadIndex())
#define blockIdx (emulation::state.block_index)
#define blockDim (emulation::state.block_dim)

inline void __syncthreads() { emulation::WaitFor(emulation::Wait::kBlock); }

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }

inline float __shfl_xor_sync(unsigned /*mask*/, float value, int lanes) {
  const unsigned thread = emulation::state.thread;
  const unsigned parity = emulation::Exchange({__float_as_uint(value)});
  return __uint_as_float(emulation::state.fibers[thread ^ static_cast<unsigned>(lanes)].shared[parity][0]);
}

inline unsigned __shfl_sync(unsigned /*mask*/, unsigned value, int lane) {
  const unsigned warp = emulation::state.thread / emulation::kWarp * emulation::kWarp;
  const unsigned parity = emulation::Exchange({value});
  return emulation::state.fibers[warp + static_cast<unsigned>(lane) % emulation::kWarp].shared[parity][0];
}

// Four of the eight bytes of low and high, by the digits of `selector`.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  unsigned picked = 0;
  for (int byte = 0; byte < 4; ++byte) {
    picked |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * byte) & 7)) & 0xff) << (8 * byte);
  }
  return picked;
}

#endif  // VKV_TEST_NATIVE_CUDA_EMULATION_H_
