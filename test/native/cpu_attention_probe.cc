// Runs the CPU's attention kernels of every instruction set that this machine has over random worlds, and compares each
// with its reference; a prompt that comes in two passes gives the same bits as in one. Usage: cpu_attention_probe SEED
// ROUNDS. One line per kernel that ran: its name, runs, and "ok" or what was wrong.
#include "cuda_emulation.h"
//
#include "kernel_probe.h"
//
#include "attention_world.h"
#include "kernels/cpu/kernel_set_cpu.h"
#include "kernels/reference.h"

namespace {

using namespace vkv;
using namespace vkv::kernels;
using namespace vkv::probe;

// Gives each task to another worker, one after the other.
class OneByOne final : public ParallelLoop {
 public:
  void Run(int64_t tasks, int threads, Task task, void* context) override {
    for (int64_t at = 0; at < tasks; ++at) task(context, at, static_cast<int>(at % threads));
  }
};

void AttendOnce(const SimdKernels* simd, bool is_decoding, int longest) {
  last_kernel = std::string(simd->name) + (is_decoding ? "_decode" : "_prefill");
  ++outcomes[last_kernel].runs;
  CpuKernels kernels(std::make_shared<OneByOne>(), Pick({1, 2, 5}), simd);
  AttentionWorld ours = AttentionWorld::Random(is_decoding, longest, Next() % 4 != 0);
  AttentionWorld theirs = ours;
  theirs.Guard(theirs.spans());
  reference::Attention(theirs.command(), theirs.spans());
  const auto attend = [&](const std::vector<Span>& spans) {
    ours.Guard(spans);
    (void)(is_decoding ? kernels.DecodeAttention(ours.command(), spans)
                       : kernels.PrefillAttention(ours.command(), spans));
  };
  attend(ours.spans());
  if (const std::string wrong = ours.Compare(theirs); !wrong.empty()) return Note(wrong);
  if (is_decoding) return;
  const std::vector<uint8_t> whole = ours.TakeOutput();
  std::vector<Span> first, second;
  ours.Cut(first, second);
  attend(first);
  attend(second);
  if (ours.TakeOutput() != whole) Note(ours.Name() + ": other bits in two passes than in one");
}

}  // namespace

int main(int argc, char** argv) {
  return RunRounds(argc, argv, [] {
    for (const SimdKernels* simd : {Avx512Kernels(), Avx2Kernels(), PortableKernels()}) {
      if (simd == nullptr) continue;
      AttendOnce(simd, /*is_decoding=*/true, Pick({0, 0, 1500}));
      AttendOnce(simd, /*is_decoding=*/false, 0);
    }
  });
}
