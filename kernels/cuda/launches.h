// Launches: the kernels that a command launches, with grid, block, shared memory and parameters. Pure arithmetic; knows
// no driver, so that the launcher, the simulated device and a test of the sources all use the same.
//
// Each launch calls `submit(name, grid, threads, shared_bytes, parameters)`; a failed Status ends the command.
#ifndef VKV_KERNELS_CUDA_LAUNCHES_H_
#define VKV_KERNELS_CUDA_LAUNCHES_H_

#include <functional>
#include <span>
#include <string>

#include "kernels/cuda/parameters.h"
#include "status.h"

namespace vkv::kernels::cuda {

struct Grid {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;
};

struct Launch {
  const char* name;  // valid during the call
  Grid grid;
  uint32_t threads;
  uint32_t shared_bytes;
  const void* parameters;  // of parameter_bytes
  size_t parameter_bytes;
};

using Submit = std::function<Status(const Launch&)>;

// Nothing is launched for an empty grid.
template <typename Parameters>
Status SubmitOne(const Submit& submit, const char* name, const Grid& grid, int threads, int shared_bytes,
                 const Parameters& parameters) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return Ok();
  return submit({name, grid, static_cast<uint32_t>(threads), static_cast<uint32_t>(shared_bytes), &parameters,
                 sizeof(parameters)});
}

inline uint32_t ToGrid(int64_t count) { return static_cast<uint32_t>(count); }

inline const char* NameOf(Dtype dtype) {
  return dtype == Dtype::kFloat32 ? "f32" : dtype == Dtype::kFloat16 ? "f16" : "bf16";
}

// Room for partial results of decoding: [span, query head, split]. Null: nothing is split.
struct Workspace {
  uint64_t address = 0;
  uint64_t bytes = 0;
};

// The sequences of a captured step, in device memory: row i is that of span i.
struct StepList {
  uint64_t address = 0;
  int32_t count = 0;
};

Status LaunchAppend(const AppendCommand& command, std::span<const Span> spans, const Submit& submit);
Status LaunchCopy(std::span<const Region> regions, std::span<const TokenCopy> copies, const Submit& submit);
// The runs do not overlap, and none is empty.
Status LaunchScatter(uint64_t source, std::span<const ScatterRun> runs, const Submit& submit);
// `multiprocessors`: the number that the splits are to fill with blocks.
Status LaunchDecode(const AttentionCommand& command, std::span<const Span> spans, int multiprocessors,
                    const Workspace& workspace, const Submit& submit);
// The same for a step that reads its sequences when the kernels run: the launches do not depend on their lengths.
Status LaunchAppend(const AppendCommand& command, const StepList& list, const Submit& submit);
Status LaunchDecode(const AttentionCommand& command, const StepList& list, int multiprocessors,
                    const Workspace& workspace, const Submit& submit);
Status LaunchPrefill(const AttentionCommand& command, std::span<const Span> spans, const Submit& submit);

// The decode kernel for a command: its name, how many query heads of a KV head one block takes, and how many blocks run
// on a multiprocessor at a time.
struct DecodeKernel {
  std::string name;
  int heads = 1;
  int blocks = 1;
};
DecodeKernel ChooseDecode(const AttentionCommand& command);

// The prefill kernel for a command: its name, new tokens of a block, and the shared memory of one.
struct PrefillKernel {
  std::string name;
  int rows = 0;
  int shared_bytes = 0;
};
PrefillKernel ChoosePrefill(const AttentionCommand& command);

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_CUDA_LAUNCHES_H_
