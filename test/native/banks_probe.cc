// Runs the prefill kernels' own sources on emulated threads and looks at every access to shared memory: how many turns
// the accesses of a warp take, where two lanes want different words of one of the 32 banks. Prints for each kernel and
// dim how many accesses there were, and how many turns the worst of them took beyond the fewest.
//
// Built with -fsanitize=thread, whose calls for reads and writes are defined here in place of its library. Lanes of a
// warp run the same instructions, so that the n-th access of each lane by one instruction is one of the warp. Copies
// that go on by themselves are not looked at.
#include "cuda_emulation.h"
//
#include "kernel_probe.h"
//
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "kernels/cuda/kernels.cu"
#include "kernels/cuda/launches.h"

#define VKV_PLAIN __attribute__((no_sanitize("thread")))

namespace {

using namespace vkv;
using namespace vkv::kernels;

constexpr int kBanks = 32;
constexpr size_t kTurnBytes = 4 * kBanks;  // that all lanes of a turn read at most

struct Access {
  size_t offset;
  size_t bytes;
};
bool is_noting = false;                                                             // not again for what noting does
std::map<std::pair<uintptr_t, unsigned>, unsigned> counts;                          // by instruction and thread
std::map<std::tuple<uintptr_t, unsigned, unsigned>, std::vector<Access>> accesses;  // by instruction, warp, and which

VKV_PLAIN void NoteAccess(const void* address, size_t bytes, void* instruction) {
  if (is_noting) return;
  is_noting = true;
  const auto& shared = emulation::state.launch_shared;
  const auto* const begin = reinterpret_cast<const char*>(shared.data());
  const auto* const at = static_cast<const char*>(address);
  if (at >= begin && at < begin + shared.size() * sizeof(float)) {
    const auto pc = reinterpret_cast<uintptr_t>(instruction);
    const unsigned thread = emulation::state.thread;
    const unsigned which = counts[{pc, thread}]++;
    accesses[{pc, thread / emulation::kWarp, which}].push_back({static_cast<size_t>(at - begin), bytes});
  }
  is_noting = false;
}

// Lanes take a turn together as long as they read no more than one word of each bank.
int TurnsBeyondTheFewest(const std::vector<Access>& lanes) {
  const size_t at_once = kTurnBytes / lanes.front().bytes;
  int beyond = 0;
  for (size_t first = 0; first < lanes.size(); first += at_once) {
    std::set<size_t> words[kBanks];
    for (size_t lane = first; lane < std::min(first + at_once, lanes.size()); ++lane) {
      for (size_t byte = 0; byte < lanes[lane].bytes; byte += 4) {
        const size_t word = (lanes[lane].offset + byte) / 4;
        words[word % kBanks].insert(word);
      }
    }
    size_t turns = 1;
    for (const auto& of_bank : words) turns = std::max(turns, of_bank.size());
    beyond += static_cast<int>(turns) - 1;
  }
  return beyond;
}

Status Run(const cuda::Launch& launch) {
  using namespace cuda;
  const std::string name = launch.name;
  probe::last_kernel = name;
#define VKV_TRY(kernel) \
  if (name == #kernel) return probe::Emulate(kernel, launch), Ok()
  VKV_TRY(vkv_prefill_f32_r32);
  VKV_TRY(vkv_prefill_f32_r16);
  VKV_TRY(vkv_prefill_f16_r32);
  VKV_TRY(vkv_prefill_bf16_r16);
  VKV_TRY(vkv_prefill_f16_d64);
  VKV_TRY(vkv_prefill_f16_d128);
  VKV_TRY(vkv_prefill_bf16_d128);
  return Fail(Code::kInternal, "no such kernel");
}

void Look(Dtype dtype, int dim, int64_t odd_bytes) {
  constexpr int kTokens = 80;
  constexpr int kNew = 33;  // two blocks, and the second has one row
  const int64_t token_bytes = dim * ElementBytes(dtype) + odd_bytes;
  std::vector<uint8_t> memory(2 * kTokens * token_bytes + 16);
  std::vector<float> rows(2 * kNew * dim);
  AttentionCommand command;
  command.keys = {(reinterpret_cast<uint64_t>(memory.data()) + 15) / 16 * 16,
                  kTokens * token_bytes,
                  token_bytes,
                  token_bytes,
                  1,
                  dim};
  command.values = command.keys;
  command.values.address += kTokens * token_bytes;
  command.queries = reinterpret_cast<uint64_t>(rows.data());
  command.output = command.queries + kNew * dim * sizeof(float);
  command.cache_dtype = dtype;
  command.query_heads = 1;
  const Span span = {0, kTokens - kNew, kNew, 0};
  counts.clear();
  accesses.clear();
  const Status status = cuda::LaunchPrefill(command, {&span, 1}, Run);
  int worst = 0;
  for (const auto& [key, lanes] : accesses) worst = std::max(worst, TurnsBeyondTheFewest(lanes));
  std::printf("%s %d %zu %d\n", status.ok() ? probe::last_kernel.c_str() : status.call, dim, accesses.size(), worst);
}

}  // namespace

#define VKV_NOTE(name, bytes) \
  extern "C" VKV_PLAIN void __tsan_##name(void* address) { NoteAccess(address, bytes, __builtin_return_address(0)); }
VKV_NOTE(read1, 1)
VKV_NOTE(read2, 2)
VKV_NOTE(read4, 4)
VKV_NOTE(read8, 8)
VKV_NOTE(read16, 16)
VKV_NOTE(write1, 1)
VKV_NOTE(write2, 2)
VKV_NOTE(write4, 4)
VKV_NOTE(write8, 8)
VKV_NOTE(write16, 16)
extern "C" VKV_PLAIN void __tsan_init() {}
extern "C" VKV_PLAIN void __tsan_func_entry(void*) {}
extern "C" VKV_PLAIN void __tsan_func_exit() {}
extern "C" VKV_PLAIN void __tsan_vptr_update(void**, void*) {}
extern "C" VKV_PLAIN void __tsan_vptr_read(void**) {}
extern "C" VKV_PLAIN void __tsan_read_range(void* address, unsigned long bytes) {
  NoteAccess(address, bytes, __builtin_return_address(0));
}
extern "C" VKV_PLAIN void __tsan_write_range(void* address, unsigned long bytes) {
  NoteAccess(address, bytes, __builtin_return_address(0));
}

int main() {
  for (const int dim : {64, 96, 128, 256}) Look(Dtype::kFloat32, dim, 0);
  Look(Dtype::kFloat16, 128, 2);  // keys that cannot be read 16 bytes at a time
  Look(Dtype::kBfloat16, 256, 0);
  for (const int dim : {64, 128}) Look(Dtype::kFloat16, dim, 0);
  Look(Dtype::kBfloat16, 128, 0);
  return 0;
}
