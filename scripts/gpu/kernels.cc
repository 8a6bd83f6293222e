// The probe's kernels, as PTX that the driver of any GPU since Volta compiles, and substitutes for devices without
// kernels.
#include <algorithm>

#include "gpu.h"

namespace vkv::probe {
namespace {

constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64

.visible .entry spin(.param .u64 nanoseconds)
{
  .reg .pred %more;
  .reg .u64 %now, %end;
  ld.param.u64 %end, [nanoseconds];
  mov.u64 %now, %globaltimer;
  add.u64 %end, %end, %now;
again:
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %more, %now, %end;
  @%more bra again;
  ret;
}

.visible .entry watch(.param .u64 address, .param .u64 words, .param .u64 nanoseconds, .param .u64 expected, .param .u64 wrong)
{
  .reg .pred %p;
  .reg .u32 %block, %threads, %thread, %blocks, %first32, %stride32;
  .reg .u64 %base, %words, %now, %end, %expected, %wrong, %first, %stride, %word, %at, %value;
  ld.param.u64 %base, [address];
  ld.param.u64 %words, [words];
  ld.param.u64 %end, [nanoseconds];
  ld.param.u64 %expected, [expected];
  ld.param.u64 %wrong, [wrong];
  mov.u64 %now, %globaltimer;
  add.u64 %end, %end, %now;
  mov.u32 %block, %ctaid.x;
  mov.u32 %blocks, %nctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.u32 %first32, %block, %threads, %thread;
  mul.lo.u32 %stride32, %blocks, %threads;
  cvt.u64.u32 %first, %first32;
  cvt.u64.u32 %stride, %stride32;
round:
  mov.u64 %word, %first;
next:
  setp.ge.u64 %p, %word, %words;
  @%p bra done;
  shl.b64 %at, %word, 3;
  add.u64 %at, %at, %base;
  ld.volatile.global.u64 %value, [%at];
  add.u64 %word, %word, %stride;
  setp.eq.u64 %p, %value, %expected;
  @%p bra next;
  atom.global.add.u64 %value, [%wrong], 1;
  bra next;
done:
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %p, %now, %end;
  @%p bra round;
  ret;
}

.visible .entry await(.param .u64 flag, .param .u64 data, .param .u64 nanoseconds, .param .u64 out)
{
  .reg .pred %p;
  .reg .u64 %flag, %data, %now, %end, %out, %value;
  ld.param.u64 %flag, [flag];
  ld.param.u64 %data, [data];
  ld.param.u64 %end, [nanoseconds];
  ld.param.u64 %out, [out];
  mov.u64 %now, %globaltimer;
  add.u64 %end, %end, %now;
again:
  ld.volatile.global.u64 %value, [%flag];
  setp.ne.u64 %p, %value, 0;
  @%p bra ready;
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %p, %now, %end;
  @%p bra again;
  mov.u64 %value, 0;
  st.volatile.global.u64 [%out], %value;
  ret;
ready:
  ld.volatile.global.u64 %value, [%data];
  st.volatile.global.u64 [%out], %value;
  ret;
}
)";

constexpr unsigned kThreads = 128;
constexpr int kFills = 800;
constexpr double kNsPerMs = 1e6;

}  // namespace

Kernels::Kernels(const Gpu& gpu)
    : gpu_(gpu), result_(gpu.api().cuModuleLoadDataEx(&module_, kPtx, 0, nullptr, nullptr)) {}

void Kernels::Launch(const char* name, CUstream stream, unsigned blocks, void** parameters) const {
  CUfunction function = nullptr;
  Must(gpu_.api().cuModuleGetFunction(&function, module_, name), "cuModuleGetFunction");
  const unsigned threads = blocks == 1 ? 1 : kThreads;
  Must(gpu_.api().cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr),
       "cuLaunchKernel");
}

void Kernels::Spin(CUstream stream, double ms) const {
  auto nanoseconds = static_cast<uint64_t>(ms * kNsPerMs);
  void* parameters[] = {&nanoseconds};
  Launch("spin", stream, 1, parameters);
}

void Kernels::Watch(CUstream stream, CUdeviceptr address, size_t bytes, double ms, uint64_t expected,
                    CUdeviceptr wrong) const {
  uint64_t words = bytes / sizeof(uint64_t);
  auto nanoseconds = static_cast<uint64_t>(ms * kNsPerMs);
  void* parameters[] = {&address, &words, &nanoseconds, &expected, &wrong};
  Launch("watch", stream, 64, parameters);
}

void Kernels::Await(CUstream stream, CUdeviceptr flag, CUdeviceptr data, double ms, CUdeviceptr out) const {
  auto nanoseconds = static_cast<uint64_t>(ms * kNsPerMs);
  void* parameters[] = {&flag, &data, &nanoseconds, &out};
  Launch("await", stream, 1, parameters);
}

Work::Work(const Gpu& gpu) : gpu_(gpu), kernels_(gpu) {
  if (kernels_.are_there()) return;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  Must(gpu.api().cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo");
  const size_t pages = std::clamp<size_t>(free_bytes / 4 / gpu.page_bytes(), 1, 512);
  scratch_bytes_ = pages * gpu.page_bytes();
  scratch_ = gpu.Reserve(scratch_bytes_);
  gpu.MapPages(scratch_, static_cast<int>(pages));
}

void Work::Start(CUstream stream, double ms) {
  if (kernels_.are_there()) return kernels_.Spin(stream, ms);
  // Streams that do their work at once (the simulated device) need no more than a few.
  for (int fill = 0; fill < kFills && (fill < 2 || gpu_.IsBusy(stream)); ++fill) {
    Must(gpu_.api().cuMemsetD8Async(scratch_, 1, scratch_bytes_, stream), "cuMemsetD8Async");
  }
}

}  // namespace vkv::probe
