// DriverCuda: a Driver over a table of CUDA entry points, of the real library or the mock. It translates calls into
// entry points and their results into Status. It checks one thing itself, that every address of an unmapped range has a
// page, as CUDA unmaps the rest in silence and hides the mistake; of all else CUDA decides what is allowed.
//
// It keeps the device's primary context (never one of its own, so that it shares addresses with the engine)
// from Open until it is destroyed. Threads: any, inside a DriverScope. After a sticky failure, and in a
// forked child, no call reaches CUDA any more.
#ifndef VKV_CUDA_DRIVER_CUDA_H_
#define VKV_CUDA_DRIVER_CUDA_H_

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "covered_work.h"
#include "cuda/answers.h"
#include "cuda/cuda_api.h"
#include "cuda/ledger.h"
#include "cuda/modules.h"
#include "driver.h"
#include "fork_stamp.h"

namespace vkv::cuda {

struct LaunchSize {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block_threads = 1;
  uint32_t shared_bytes = 0;
};

class DriverCuda final : public Driver {
 public:
  // `kind` is for DriverInfo. Fails with kDriverUnavailable (stub library, no device, no such device, cuInit
  // refused), kDriverUnsupported (no virtual memory management), or what a failed call gives.
  static Status Open(std::shared_ptr<CudaApi> api, int device, const char* kind, std::unique_ptr<Driver>& driver);
  // Waits for the device and gives back what is left, after telling the table how much that is
  // (NoteLeftovers).
  ~DriverCuda() override;
  DriverCuda(const DriverCuda&) = delete;
  DriverCuda& operator=(const DriverCuda&) = delete;

  const DriverInfo& info() const override { return info_; }
  DriverHost* AsHost() override { return Driver::AsHost(); }
  DriverCuda* AsCuda() override { return this; }
  Status QueryMemory(MemoryInfo& memory) override;
  bool IsShortOfMappings() override { return Driver::IsShortOfMappings(); }
  bool is_lost() const override { return lost_result_.load(std::memory_order_acquire) != CUDA_SUCCESS; }

  // Also relaxes the thread's stream capture mode, so that mapping is legal while a stream is being
  // captured. Does nothing within a scope of the same driver.
  Status Enter() override;
  void Leave() override;

  // The alignment is the largest power of two that divides `page_bytes`, which is all that mapping needs.
  Status Reserve(uint64_t bytes, uint64_t page_bytes, uint64_t& address) override;
  Status FreeReservation(uint64_t address, uint64_t bytes) override;
  Status CreatePage(uint64_t page_bytes, uint64_t near, PageHandle& page) override;
  Status ReleasePage(PageHandle page, uint64_t page_bytes) override;
  Status Map(uint64_t address, uint64_t page_bytes, PageHandle page) override;
  Status MapEach(uint64_t address, uint64_t page_bytes, std::span<const PageHandle> pages, uint64_t& mapped) override {
    return Driver::MapEach(address, page_bytes, pages, mapped);
  }
  Status SetAccess(uint64_t address, uint64_t bytes) override;
  Status Unmap(uint64_t address, uint64_t bytes) override;
  void BeginUndo() override { Driver::BeginUndo(); }
  void EndUndo() override { Driver::EndUndo(); }
  uint64_t SharedRunBytes(uint64_t address, uint64_t bytes) override { return Driver::SharedRunBytes(address, bytes); }

  Status Write(uint64_t to, const void* from, uint64_t bytes) override;
  Status Read(void* to, uint64_t from, uint64_t bytes) override;
  Status WriteEach(std::span<const WritePiece> pieces) override { return Driver::WriteEach(pieces); }
  Status ReadUntouched(void* to, uint64_t from, uint64_t bytes) override {
    return Driver::ReadUntouched(to, from, bytes);
  }
  Status RegisterHost(uint64_t address, uint64_t bytes) override;
  Status UnregisterHost(uint64_t address) override;
  Status FindOnDevice(uint64_t address, uint64_t& on_device) override;
  Status Download(void* to, uint64_t from, uint64_t bytes, Stream stream) override;
  Status Upload(uint64_t to, const void* from, uint64_t bytes, Stream stream) override;
  Status Copy(uint64_t to, uint64_t from, uint64_t bytes, Stream stream) override;
  Status Fill(uint64_t to, uint8_t value, uint64_t bytes, Stream stream) override;

  Status CreateStream(Stream& stream) override;
  Status DestroyStream(Stream stream) override;
  Status SynchronizeStream(Stream stream) override;
  Status RecordEvent(Stream stream, Event& event) override;
  Status QueryEvent(Event event, bool& is_done) override;
  Status SynchronizeEvent(Event event) override;
  Status WaitEvent(Stream stream, Event event) override;
  Status DestroyEvent(Event event) override;

  // Kernels (driver_cuda_kernels.cc), inside a DriverScope too. LoadModule compiles and loads an image, PTX ended by a
  // zero or a fatbin, as the module of that name, with all these kernels looked up, so that no launch loads any. A
  // module that is there already, or that another thread is loading, is taken as it is. It lives as long as the driver.
  // kKernelsRefused, with the compiler's log in `log`, leaves nothing behind. A launch copies its one parameter.
  Status LoadModule(const std::string& name, const void* image, std::span<const ModuleKernel> kernels,
                    std::string& log);
  const Module* FindModule(const std::string& name) { return modules_.Find(name); }  // null: not loaded
  Status LaunchKernel(CUfunction kernel, const LaunchSize& size, Stream stream, const void* parameter);
  Status CountMultiprocessors(int& count);

  // Graphs (driver_cuda_graphs.cc), inside a DriverScope too. From BeginCapture on, work queued on the stream (not a
  // default stream) is recorded and not run, until EndCapture makes a graph of it or AbortCapture drops it. The caller
  // destroys the graph once its launches are over.
  Status BeginCapture(Stream stream);
  Status EndCapture(Stream stream, CUgraphExec& graph);
  void AbortCapture(Stream stream);
  Status LaunchGraph(CUgraphExec graph, Stream stream);
  Status DestroyGraph(CUgraphExec graph);

  // After work was queued on a stream, also past the driver (cuBLAS's) and also where the call failed, as part of it
  // may be queued: Write and Read come after it, when the stream is the default one.
  void NoteQueued(Stream stream) {
    if (IsDefault(stream)) default_work_.Note();
  }

 private:
  DriverCuda(std::shared_ptr<CudaApi> api, DriverInfo info, CUdevice device, CUcontext context);

  // By CUDA's names: 0, and 1 where it is called the legacy one.
  static bool IsDefault(Stream stream) { return stream <= 1; }
  bool is_forked() const { return stamp_.is_forked(); }
  // Ok when a call may reach CUDA.
  Status Ready() const;
  // The Status of a call's result; a sticky one makes the driver lost.
  Status Check(const char* call, CUresult result, const Subject& subject = {});
  // The same for a call that gives something back: with the context gone there is nothing left to give.
  Status CheckGivenBack(const char* call, CUresult result, const Subject& subject);
  void Lose(const char* call, CUresult result);
  void GiveBackLeftovers();
  // Waits for the default stream when something was queued there through this driver that no wait has covered, and else
  // leaves it alone, as it cannot be used while a blocking stream is captured.
  Status WaitForDefault();
  Status OpenModule(const void* image, std::span<const ModuleKernel> kernels, Module& module, std::string& log);

  const std::shared_ptr<CudaApi> api_;
  DriverInfo info_;  // immutable after Open
  const CUdevice device_;
  const CUcontext context_;  // the primary context, retained once
  const ForkStamp stamp_;    // of the process that opened it
  Ledger ledger_;
  Modules modules_;
  CUstream own_stream_ = nullptr;                    // non-blocking; of Write and Read. From Open on
  CoveredWork default_work_;                         // of the default stream
  std::atomic<CUresult> lost_result_{CUDA_SUCCESS};  // the first sticky failure
  std::atomic<const char*> lost_call_{""};
};

}  // namespace vkv::cuda

#endif  // VKV_CUDA_DRIVER_CUDA_H_
