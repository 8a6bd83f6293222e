// Questions about the cost of mapping to other work, and alternatives: launches while another thread maps, rows of
// models by layout, and a row that passes to another slot in place, by a copy, or by mapping it elsewhere.
#include <atomic>
#include <thread>

#include "gpu.h"

namespace vkv::probe {
namespace {

constexpr int kRounds = 10;

// Reservations of so many pages each, with a page mapped at the start of each; more pages to map.
class Rows {
 public:
  Rows(Gpu& gpu, int reservations, int pages_each) : gpu_(gpu), bytes_(gpu.page_bytes()) {
    for (int i = 0; i < reservations; ++i) addresses_.push_back(gpu.Reserve(pages_each * bytes_));
    for (int i = 0; i < reservations; ++i) pages_.push_back(gpu.Create(bytes_));
  }

  void Map(int page) {
    for (size_t i = 0; i < addresses_.size(); ++i) {
      const CUdeviceptr at = addresses_[i] + page * bytes_;
      Must(gpu_.api().cuMemMap(at, bytes_, 0, pages_[i], 0), "cuMemMap");
      Must(gpu_.SetAccess(at, bytes_), "cuMemSetAccess");
    }
  }
  void Unmap(int page) {
    for (const CUdeviceptr address : addresses_)
      Must(gpu_.api().cuMemUnmap(address + page * bytes_, bytes_), "cuMemUnmap");
  }

 private:
  Gpu& gpu_;
  const size_t bytes_;
  std::vector<CUdeviceptr> addresses_;
  std::vector<CUmemGenericAllocationHandle> pages_;
};

// A row of a model with 32 layers takes 64 maps and as many SetAccess per layer, 1 fused, and 104 with side tensors.
void RowsByLayout(Gpu& gpu, const char* name) {
  for (const int reservations : {1, 2, 64, 104}) {
    Rows rows(gpu, reservations, 2);
    std::vector<double> map, unmap;
    for (int round = 0; round < kRounds; ++round) {
      map.push_back(TimeUs([&] { rows.Map(0); }));
      unmap.push_back(TimeUs([&] { rows.Unmap(0); }));
    }
    Line(name).Number("reservations", reservations).Times("mapARow", map).Times("unmapARow", unmap);
  }
}

// Does a launch wait while another thread is in a mapping call?
void LaunchesBesideMapping(Gpu& gpu, const char* name) {
  constexpr int kLaunches = 2000;
  CudaApi& api = gpu.api();
  const CUstream stream = gpu.CreateStream();
  const CUdeviceptr scratch = gpu.Reserve(gpu.page_bytes());
  gpu.MapPages(scratch, 1);
  CUcontext context = nullptr;
  Must(api.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  const Kernels kernels(gpu);
  const auto launch = [&] {
    if (kernels.are_there())
      kernels.Spin(stream, 0);
    else
      Must(api.cuMemsetD8Async(scratch, 1, 16, stream), "cuMemsetD8Async");
  };
  const auto sample = [&](std::vector<double>& times) {
    for (int n = 0; n < kLaunches; ++n) {
      times.push_back(TimeUs(launch));
      if (n % 100 == 99) Must(api.cuStreamSynchronize(stream), "cuStreamSynchronize");
    }
  };
  std::vector<double> alone, beside;
  sample(alone);
  std::atomic<bool> is_over = false;
  std::atomic<int> maps = 0;
  std::thread mapper([&] {
    Must(api.cuCtxPushCurrent(context), "cuCtxPushCurrent");
    Rows rows(gpu, 8, 2);
    for (; !is_over; maps += 8) {
      rows.Map(0);
      rows.Unmap(0);
    }
  });
  while (maps == 0) std::this_thread::yield();
  sample(beside);
  is_over = true;
  mapper.join();
  Line(name)
      .Text("launch", kernels.are_there() ? "cuLaunchKernel" : "cuMemsetD8Async")
      .Times("alone", alone)
      .Times("beside", beside)
      .Number("mapsMeanwhile", maps);
}

// A row of 37 pages (74 MiB) goes from one slot to another: as it is (nothing to do but to zero it), copied, or
// remapped.
void RowChangesHands(Gpu& gpu, const char* name) {
  constexpr int kPages = 37;
  const size_t bytes = kPages * gpu.page_bytes();
  CudaApi& api = gpu.api();
  const CUstream stream = gpu.CreateStream();
  const CUdeviceptr from = gpu.Reserve(bytes);
  const CUdeviceptr to = gpu.Reserve(bytes);
  const CUdeviceptr moved = gpu.Reserve(bytes);
  const auto pages = gpu.MapPages(from, kPages);
  gpu.MapPages(to, kPages);
  const auto wait = [&] { Must(api.cuStreamSynchronize(stream), "cuStreamSynchronize"); };
  std::vector<double> in_place, copy, remap;
  for (int round = 0; round < kRounds; ++round) {
    in_place.push_back(TimeUs([&] {
      Must(api.cuMemsetD8Async(from, 0, bytes, stream), "cuMemsetD8Async");
      wait();
    }));
    copy.push_back(TimeUs([&] {
      Must(api.cuMemcpyDtoDAsync(to, from, bytes, stream), "cuMemcpyDtoDAsync");
      wait();
    }));
    const CUdeviceptr source = round % 2 == 0 ? from : moved;
    const CUdeviceptr target = round % 2 == 0 ? moved : from;
    remap.push_back(TimeUs([&] {
      Must(api.cuMemUnmap(source, bytes), "cuMemUnmap");
      for (int page = 0; page < kPages; ++page)
        Must(api.cuMemMap(target + page * gpu.page_bytes(), gpu.page_bytes(), 0, pages[page], 0), "cuMemMap");
      Must(gpu.SetAccess(target, bytes), "cuMemSetAccess");
    }));
    if (round % 2 == 0) {  // back, so that the next round finds it
      Must(api.cuMemUnmap(moved, bytes), "cuMemUnmap");
      for (int page = 0; page < kPages; ++page)
        Must(api.cuMemMap(from + page * gpu.page_bytes(), gpu.page_bytes(), 0, pages[page], 0), "cuMemMap");
      Must(gpu.SetAccess(from, bytes), "cuMemSetAccess");
      ++round;
    }
  }
  Line(name).Number("pages", kPages).Times("zeroInPlace", in_place).Times("copy", copy).Times("unmapAndMap", remap);
}

// 104 reservations lose their first row and get one behind their last, while a kernel reads other pages.
void SlideUnderAKernel(Gpu& gpu, const char* name) {
  constexpr int kReservations = 104;
  constexpr int kRead = 32;
  constexpr uint64_t kExpected = 0x5a5a5a5a5a5a5a5a;
  const size_t bytes = gpu.page_bytes();
  Work work(gpu);
  const CUstream stream = gpu.CreateStream();
  const CUdeviceptr read = gpu.Reserve(kRead * bytes);
  const CUdeviceptr wrong = gpu.Reserve(bytes);
  gpu.MapPages(read, kRead);
  gpu.Fill(read, 0x5a, kRead * bytes);
  gpu.MapPages(wrong, 1);
  gpu.Fill(wrong, 0, bytes);
  const auto start = [&] {
    if (work.kernels().are_there()) {
      work.kernels().Watch(stream, read, kRead * bytes, 100, kExpected, wrong);
    } else {
      work.Start(stream, 100);
    }
  };
  Rows rows(gpu, kReservations, kRounds + 2);
  std::vector<double> alone, beside;
  int waited = 0;
  rows.Map(0);
  for (int round = 0; round < kRounds; ++round) {
    const bool is_beside = round % 2 == 1;
    if (is_beside) start();
    (is_beside ? beside : alone).push_back(TimeUs([&] {
      rows.Unmap(round);
      rows.Map(round + 1);
    }));
    if (!is_beside) continue;
    waited += gpu.IsBusy(stream) ? 0 : 1;
    Must(gpu.api().cuStreamSynchronize(stream), "cuStreamSynchronize");
  }
  uint64_t wrong_reads = 0;
  Must(gpu.api().cuMemcpyDtoH(&wrong_reads, wrong, sizeof wrong_reads), "cuMemcpyDtoH");
  Line(name)
      .Number("reservations", kReservations)
      .Text("work", work.kind())
      .Number("wrongReads", static_cast<double>(wrong_reads))
      .Times("alone", alone)
      .Times("beside", beside)
      .Number("waited", waited);
}

// Calls that CUDA forbids without defining the result: the contract suite does not test them.
void Forbidden(Gpu& gpu, const char* name) {
  const size_t bytes = gpu.page_bytes();
  CudaApi& api = gpu.api();
  CUdeviceptr odd = 0;
  CUdeviceptr huge = 0;
  Line line(name);
  const CUresult reserved = api.cuMemAddressReserve(&odd, bytes + 4096, bytes, 0, 0);
  line.Result("reserveAPageAnd4KiB", reserved);
  if (reserved == CUDA_SUCCESS) line.Result("freeIt", api.cuMemAddressFree(odd, bytes + 4096));
  line.Result("reserveAPiB", api.cuMemAddressReserve(&huge, size_t{1} << 50, bytes, 0, 0));
  const CUdeviceptr whole = gpu.Reserve(4 * bytes);
  line.Result("freePartOfAReservation", api.cuMemAddressFree(whole, 3 * bytes));
  const CUresult freed = api.cuMemAddressFree(whole, 4 * bytes);
  line.Result("freeTheWhole", freed);
  if (freed == CUDA_SUCCESS) line.Result("freeItAgain", api.cuMemAddressFree(whole, 4 * bytes));
  const CUdeviceptr address = gpu.Reserve(2 * bytes);
  gpu.MapPages(address, 1);
  line.Result("fillNothing", api.cuMemsetD8Async(address, 0, 0, nullptr));
  line.Result("freeAReservationWithAPage", api.cuMemAddressFree(address, 2 * bytes));
}

}  // namespace

const std::vector<NamedQuestion> kContentionQuestions = {
    {"rows by layout", true, RowsByLayout},
    {"launches beside mapping", true, LaunchesBesideMapping},
    {"a row that changes hands", true, RowChangesHands},
    {"sliding rows under a kernel", true, SlideUnderAKernel},
    {"what the contract does not ask", true, Forbidden},
};

}  // namespace vkv::probe
