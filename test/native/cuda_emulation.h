// CUDA's threads on a CPU, well enough to run the kernels of this package as they are written: a block's threads are
// fibers of one thread, switched at __syncthreads and at shuffles, with CUDA's rules: a barrier waits for every thread that
// has not returned, a shuffle for every lane of the warp. A thread that waits for ever ends the program with a message.
//
// For tests: it shows that indices, barriers and arithmetic are right, and says nothing of speed. Shared memory is one static
// object for each __shared__ variable, filled with NaN between blocks only where a launch asks for it.
#ifndef VKV_TEST_NATIVE_CUDA_EMULATION_H_
#define VKV_TEST_NATIVE_CUDA_EMULATION_H_

#include <ucontext.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __grid_constant__
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

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  Wait wait = Wait::kNothing;
  float shuffled[2] = {};  // by parity, so that a lane may be one shuffle ahead
  unsigned shuffles = 0;
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

inline uint3 ThreadIndex() { return {state.thread, 0, 0}; }

inline void WaitFor(Wait wait) {
  Fiber& fiber = state.fibers[state.thread];
  fiber.wait = wait;
  swapcontext(&fiber.context, &state.scheduler);
}

inline void Body() {
  state.kernel();
  WaitFor(Wait::kDone);
}

// Lets those go on that wait for nobody any more; whether there were any.
inline bool Release() {
  bool is_released = false;
  const auto all = [&](size_t begin, size_t end, Wait wait) {
    size_t waiting = 0;
    for (size_t i = begin; i < end; ++i) {
      if (state.fibers[i].wait == wait) ++waiting;
      else if (wait == Wait::kWarp || state.fibers[i].wait != Wait::kDone) return;
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
    fiber.shuffles = 0;
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
  std::fprintf(stderr, "threads of a block wait for each other for ever\n");
  std::exit(1);
}

// Runs kernel(parameters) for every block of the grid, one after another.
template <typename Parameters>
void Launch(void (*kernel)(Parameters), uint3 grid, unsigned threads, size_t shared_bytes, const Parameters& parameters) {
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

inline float __shfl_xor_sync(unsigned /*mask*/, float value, int lanes) {
  emulation::State& state = emulation::state;
  const unsigned thread = state.thread;
  emulation::Fiber& fiber = state.fibers[thread];
  const unsigned parity = fiber.shuffles++ % 2;
  fiber.shuffled[parity] = value;
  emulation::WaitFor(emulation::Wait::kWarp);
  return state.fibers[thread ^ static_cast<unsigned>(lanes)].shuffled[parity];
}

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }

#endif  // VKV_TEST_NATIVE_CUDA_EMULATION_H_
