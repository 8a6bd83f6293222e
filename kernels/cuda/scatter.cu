// Scatter: packed rows on the device to their places in the CPU's memory, which is registered with the device: one
// launch for the rows of a step, instead of a copy for each place. A module by itself, so that an engine with kernels
// of its own loads no others of this package.
//
// Grid (pieces of 16 KiB of the longest run, runs): a block copies one piece. Stores of a warp are side by side, as the
// bus to the CPU wants them.
#include "kernels/cuda/copy_inl.h"

namespace vkv::kernels::cuda {

VKV_KERNEL vkv_scatter(const __grid_constant__ ScatterParameters parameters) {
  const ScatterRun& run = parameters.runs[blockIdx.y];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kScatterPieceBytes;
  const int64_t left = run.bytes - begin;
  if (left <= 0) return;
  CopyBytes(run.to + begin, parameters.source + run.from + begin,
            left < kScatterPieceBytes ? left : kScatterPieceBytes);
}

}  // namespace vkv::kernels::cuda
