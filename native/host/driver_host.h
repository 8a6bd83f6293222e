// DriverHost: the driver on this machine's own memory, for CPU inference. Reservations are read-only zeros,
// pages are parts of one memory file, and a page is the same memory wherever it is mapped. Owns all of them.
//
// Map books a page; SetAccess tells the kernel, with one call for each run of pages that follow each other in
// the file. Threads: any; one mutex guards the book-keeping and is not held while pages are mapped, unmapped,
// released or copied. Kernel mappings and memory are the process's, so its drivers count them together
// (process_mappings.h, memory_share.h). It does not keep pages out of core dumps.
#ifndef VKV_HOST_DRIVER_HOST_H_
#define VKV_HOST_DRIVER_HOST_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "driver.h"
#include "host/address_space.h"
#include "host/fork_guard.h"
#include "host/host_stream.h"
#include "host/memory_share.h"
#include "host/page_file.h"
#include "host/page_listener.h"
#include "host/page_table.h"
#include "host/process_mappings.h"
#include "host/system_calls.h"

namespace vkv {

struct HostOptions {
  // The most bytes of pages that exist at a time; CreatePage refuses beyond it. 0: the memory of this machine, or of
  // the process's memory cgroup, less headroom; CreatePage then also refuses pages whose memory is not available just
  // now. Any other number is not checked.
  uint64_t memory_bytes = 0;
  // Memory is taken from the system when a page is created, and page tables are filled when it is mapped; first
  // touches take no faults. CreatePage refuses pages whose memory is not available just now, whatever `memory_bytes`
  // says. False: memory is taken at the first touch.
  bool populate = false;
  // Pages that are a multiple of 2 MiB come in the machine's huge pages where the kernel can, and have their
  // memory from the start: CreatePage refuses as with `populate`. Saves nine tenths of what filling, mapping, unmapping
  // and releasing such a page costs (huge_pages.h).
  bool huge_pages = false;
  // The most kernel mappings for reservations and their pages, beyond which Reserve and Map refuse, as they do
  // where all host drivers of the process together have half of vm.max_map_count, or `mapping_limit` if that is
  // more. 0: that half. At most seven eighths of vm.max_map_count: at the kernel's own limit even malloc fails.
  uint64_t mapping_limit = 0;
  // For tests: prefix of every path that is read to find the available memory.
  std::string machine_root;
};

// A reservation takes pages of one size only. Work on the default stream is done when a call returns; each other stream
// is a thread that runs what kernels and the driver queue there. In a fork of the process that opened it every call
// returns kDriverUnavailable (kForked).
class DriverHost final : public Driver {
 public:
  static Status Open(const HostOptions& options, std::unique_ptr<DriverHost>& driver);
  ~DriverHost() override;
  DriverHost(const DriverHost&) = delete;
  DriverHost& operator=(const DriverHost&) = delete;

  // For tests: the nth system call of this kind from now on (1: the next) fails once with the errno; 0
  // withdraws that. Kinds: "ftruncate", "mmap-reserve", "mmap-map", "mmap-unmap", "munmap", "fallocate"; and "command",
  // the nth that kernels queue on each stream there is. kDriverMisuse for any other. "hold": the nth of those commands
  // and all behind it do not begin until that is withdrawn.
  Status FailCall(std::string_view kind, uint64_t nth, int error);

  const DriverInfo& info() const override { return info_; }
  DriverHost* AsHost() override { return this; }
  cuda::DriverCuda* AsCuda() override { return Driver::AsCuda(); }
  Status QueryMemory(MemoryInfo& memory) override;
  bool IsShortOfMappings() override;
  bool is_lost() const override { return false; }
  Status Enter() override { return CheckProcess(); }
  void Leave() override {}

  Status Reserve(uint64_t bytes, uint64_t page_bytes, uint64_t& address) override;
  Status FreeReservation(uint64_t address, uint64_t bytes) override;
  Status CreatePage(uint64_t page_bytes, uint64_t near, PageHandle& page) override;
  Status ReleasePage(PageHandle page, uint64_t page_bytes) override;
  Status Map(uint64_t address, uint64_t page_bytes, PageHandle page) override;
  Status MapEach(uint64_t address, uint64_t page_bytes, std::span<const PageHandle> pages, uint64_t& mapped) override;
  Status SetAccess(uint64_t address, uint64_t bytes) override;
  void BeginUndo() override { undos_.fetch_add(1, std::memory_order_relaxed); }
  void EndUndo() override { undos_.fetch_sub(1, std::memory_order_relaxed); }
  uint64_t SharedRunBytes(uint64_t address, uint64_t bytes) override;
  Status Unmap(uint64_t address, uint64_t bytes) override;

  // For a second mapping of the pages that never changes (pinned_arena.h). Finds where the page at `address` lies in
  // the page file, and how many of the `bytes` bytes from there on follow it there; both whole pages. False unless they
  // are mapped.
  bool FindInFile(uint64_t address, uint64_t bytes, uint64_t& offset, uint64_t& run_bytes);
  // Maps a part of the page file, which need not be there yet, at addresses of its own. kOutOfMappings,
  // kOutOfAddressSpace.
  Status MapLinear(uint64_t offset, uint64_t bytes, uint64_t& address);
  Status UnmapLinear(uint64_t address, uint64_t bytes);
  // It hears of pages from here on, for as long as it lives.
  void AddListener(const std::shared_ptr<host::PageListener>& listener);

  Status Write(uint64_t to, const void* from, uint64_t bytes) override;
  Status Read(void* to, uint64_t from, uint64_t bytes) override;
  Status WriteEach(std::span<const WritePiece> pieces) override;
  Status ReadUntouched(void* to, uint64_t from, uint64_t bytes) override;
  Status RegisterHost(uint64_t address, uint64_t bytes) override;
  Status UnregisterHost(uint64_t address) override;
  Status FindOnDevice(uint64_t address, uint64_t& on_device) override {
    return Driver::FindOnDevice(address, on_device);
  }
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
  // A stream that CreateStream made and DestroyStream did not end; null for any other, the default stream included.
  std::shared_ptr<HostStream> FindStream(Stream stream);
  // Waits for all streams: what their commands name by address alone may be taken away then.
  void WaitForStreams();
  // Drops what is queued on all streams, and ends their threads: the environment ends. Nothing runs from here on.
  void StopStreams();

 private:
  // Work up to a ticket of a stream; null: of the default stream, and so done.
  struct Mark {
    std::shared_ptr<HostStream> stream;
    uint64_t ticket = 0;
  };
  DriverHost() = default;

  Status CheckProcess() const {
    if (!guard_->is_forked()) return Ok();
    return Fail(Code::kDriverUnavailable, "fork", static_cast<int64_t>(Unavailable::kForked));
  }
  Status MapLocked(host::AddressRange& range, uint64_t index, PageHandle handle);  // pre: locked
  static Status Misuse(const char* call, uint64_t what, uint64_t how_many) {
    return Fail(Code::kDriverMisuse, call, static_cast<int64_t>(what), static_cast<int64_t>(how_many));
  }
  bool CanTakeMemory(uint64_t bytes) { return share_ == nullptr || share_->Take(bytes); }
  void GiveMemory(uint64_t bytes) {
    if (share_ != nullptr) share_->Give(bytes);
  }
  Status MakeRange(uint64_t bytes, uint64_t page_bytes, uint64_t& address);
  Status TellListeners(uint64_t offset, uint64_t bytes);

  // All of these: the caller holds mutex_.
  Status CheckMappings(uint64_t needed) const;
  Status TakeOffset(uint64_t page_bytes, uint64_t near, uint64_t& offset, uint64_t& home);
  void GiveOffset(const host::Page& page);
  Status CheckAccess(const char* call, uint64_t address, uint64_t bytes);
  Status CheckStream(const char* call, Stream stream) const;
  std::shared_ptr<HostStream> StreamOf(Stream stream) const;  // null: the default stream
  // Runs `command` on the stream, or here.
  template <typename Command>
  static Status RunOn(const std::shared_ptr<HostStream>& stream, const Command& command);
  Status FindMark(const char* call, Event event, Mark& mark);  // takes mutex_ itself
  std::vector<std::shared_ptr<HostStream>> AllStreams();       // likewise

  DriverInfo info_;
  uint64_t memory_bytes_ = 0;
  uint64_t shared_mapping_limit_ = 0;
  uint64_t kernel_mapping_limit_ = 0;
  bool populate_ = false;
  bool huge_pages_ = false;

  std::atomic<int32_t> undos_{0};  // under way
  host::SystemCalls calls_;
  std::unique_ptr<host::ForkGuard> guard_;

  std::mutex mutex_;  // guards all below
  host::PageFile file_{calls_};
  std::unique_ptr<host::MemoryShare> share_;  // null: `memory_bytes` is the caller's word. Has a lock of its own
  host::PageTable pages_;
  host::AddressSpace space_;
  std::vector<std::weak_ptr<host::PageListener>> listeners_;
  std::unordered_map<Stream, std::shared_ptr<HostStream>> streams_;
  std::vector<std::shared_ptr<HostStream>> ended_streams_;
  std::unordered_map<Event, Mark> events_;
  uint64_t last_handle_ = 0;  // of streams and events
};

Status OpenHostDriver(const HostOptions& options, std::unique_ptr<Driver>& driver);

}  // namespace vkv

#endif  // VKV_HOST_DRIVER_HOST_H_
