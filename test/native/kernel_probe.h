// What the programs have in common that run CUDA kernels on emulated threads and compare them with their references:
// random numbers from a seed, what became of each kernel, and the report. A program: `PROGRAM SEED ROUNDS` prints one
// line per kernel that ran: its name, runs, and "ok" or what was wrong. Include it behind cuda_emulation.h; one thread.
#ifndef VKV_TEST_KERNEL_PROBE_H_
#define VKV_TEST_KERNEL_PROBE_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <map>
#include <string>

#include "kernels/cuda/launches.h"

namespace vkv::probe {

inline uint64_t random_state = 1;
inline uint32_t Next() {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(random_state >> 33);
}
inline int Pick(std::initializer_list<int> choices) { return choices.begin()[Next() % choices.size()]; }
inline float NextFloat() { return static_cast<float>(Next()) / (1u << 30) - 1; }

struct Outcome {
  int runs = 0;
  std::string problem;
};
inline std::map<std::string, Outcome> outcomes;
// The kernel whose results are looked at.
inline std::string last_kernel;

inline void Note(const std::string& problem) {
  if (outcomes[last_kernel].problem.empty()) outcomes[last_kernel].problem = problem;
}

template <typename Parameters>
void Emulate(void (*kernel)(Parameters), const kernels::cuda::Launch& launch) {
  Parameters parameters;
  std::memcpy(static_cast<void*>(&parameters), launch.parameters, sizeof(parameters));
  emulation::Launch(kernel, {launch.grid.x, launch.grid.y, launch.grid.z}, launch.threads, launch.shared_bytes,
                    parameters);
}

// The whole of `main`.
template <typename Round>
int RunRounds(int argc, char** argv, Round round) {
  if (argc != 3) return 2;
  random_state = std::strtoull(argv[1], nullptr, 10) * 2 + 1;
  for (int left = std::atoi(argv[2]); left > 0; --left) round();
  for (const auto& [name, outcome] : outcomes) {
    std::printf("%s %d %s\n", name.c_str(), outcome.runs, outcome.problem.empty() ? "ok" : outcome.problem.c_str());
  }
  return 0;
}

}  // namespace vkv::probe

#endif  // VKV_TEST_KERNEL_PROBE_H_
