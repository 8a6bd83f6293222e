// MockDevice: a simulated CUDA device: a table of entry points, strict and scriptable.
//
// Strict: a call that breaks a rule (rules.h) changes nothing, returns what CUDA would, and is recorded as a
// misuse. Scripted: a test makes calls fail or take time, completes streams, and loses the device.
// Every call is in the journal. It runs simulated kernels; QueueWork stands for any other.
// Threads: any; one mutex guards all state.
#ifndef VKV_MOCK_MOCK_DEVICE_H_
#define VKV_MOCK_MOCK_DEVICE_H_

#include <memory>
#include <mutex>
#include <vector>

#include "cuda/cuda_api.h"
#include "mock/address_book.h"
#include "mock/backing.h"
#include "mock/call_kind.h"
#include "mock/contexts.h"
#include "mock/cuda_names.h"
#include "mock/graph_store.h"
#include "mock/host_registrations.h"
#include "mock/journal.h"
#include "mock/module_store.h"
#include "mock/options.h"
#include "mock/page_store.h"
#include "mock/script.h"
#include "mock/stream_model.h"
#include "status.h"

namespace vkv::mock {

// What is still there, and what drivers still had when they were closed. All zero when there are no leaks.
struct LeakReport {
  cuda::Leftovers live;
  cuda::Leftovers left_by_drivers;
  uint64_t modules = 0;
  uint64_t graphs = 0;
  uint64_t retained_contexts = 0;
  uint64_t pushed_contexts = 0;
  uint64_t page_bytes = 0;  // of memory in use, also by pages that are only mapped
  bool is_lost = false;     // then nothing can be given back, and the other counts mean nothing
};

class MockDevice final : public cuda::CudaApi {
 public:
  // kDriverUnavailable (kMemoryRefused) when the system has no memory file for real backing.
  static Status Open(const MockOptions& options, std::shared_ptr<MockDevice>& device);

  const MockOptions& options() const { return options_; }

  // Script. A sticky `result` also makes the device lost when its turn comes.
  void FailCall(CallKind kind, uint64_t nth, CUresult result, uint64_t times);
  void ClearFailures();
  void SetLatency(CallKind kind, uint64_t ns);
  void Lose(CUresult result);

  // Streams. QueueWork queues work that uses these ranges, as an engine's kernel would. The journal has it as
  // cuLaunchKernel. False when the stream is not live.
  bool QueueWork(uint64_t stream, std::vector<Touch> touches);
  bool CompleteStream(uint64_t stream);
  void CompleteAll();
  uint64_t PendingWork();

  // Records, as copies.
  std::vector<JournalEntry> JournalEntries();
  void ClearJournal();
  std::vector<uint64_t> CallCounts();  // by CallKind
  void ResetCallCounts();
  std::vector<Misuse> Misuses();
  void ClearMisuses();
  LeakReport Leaks();

  cuda::CudaTraits traits() const override;
  uint64_t ResidentBytes(uint64_t created_bytes) override;
  void NoteLeftovers(const cuda::Leftovers& leftovers) override;

#define VKV_DECLARE(name, version, symbol, need, parameters, arguments) CUresult name parameters override;
  VKV_CUDA_ENTRY_POINTS(VKV_DECLARE)
#undef VKV_DECLARE

 private:
  class Call;  // mock_call.h

  MockDevice(const MockOptions& options, std::unique_ptr<Backing> backing);

  // All below: under mutex_.
  void LoseLocked(CUresult result);
  bool IsGranular(uint64_t address, uint64_t bytes) const;
  bool Show(const std::vector<Mapping>& mappings, CUmemAccess_flags access);
  CUresult Queue(Call& call, uint64_t stream, Work work);
  // The rules of a call that uses a stream; false: it broke one. All of them look at IsFree first: the stream lives,
  // and is not the default one beside the capture of one that is ordered with it. BreaksCapture is for those that wait
  // for the stream, or for all with none named, while it is captured.
  bool IsFree(Call& call, uint64_t stream);
  bool BreaksCapture(Call& call, const CUstream* stream);
  // What a kernel uses when it runs: now, or after what is queued on a stream.
  std::vector<Touch> TouchesOf(const Work& work, const uint64_t* behind_stream) const;
  // Runs the work. False when it used memory that it must not use; then the device is lost.
  bool Do(const Work& work);
  bool DoKernel(const Work& work);
  // Whether every range may be used; where one may not the device is lost.
  void NoteMisuse(const Work& work, Rule rule, const Touch& touch);
  bool CheckTouches(const Work& work, const std::vector<Touch>& touches);
  bool DoAll(const std::vector<Work>& works);

  const MockOptions options_;
  Script script_;
  std::mutex serialized_;  // held while a mapping call takes its time: a driver makes these one after another
  std::mutex mutex_;       // guards all below and script_, but not its latencies
  const std::unique_ptr<Backing> backing_;
  Journal journal_;
  Contexts contexts_;
  AddressBook addresses_;
  PageStore pages_;
  StreamModel streams_;
  HostRegistrations registrations_;
  ModuleStore modules_;
  GraphStore graphs_;
  cuda::Leftovers left_by_drivers_;
  bool is_initialized_ = false;
  CUresult lost_ = CUDA_SUCCESS;  // the sticky answer of a lost device
};

}  // namespace vkv::mock

#endif  // VKV_MOCK_MOCK_DEVICE_H_
