// Driver: the only part that depends on the machine. Each call with its pre- and post-conditions; a
// driver's capabilities are data (DriverInfo), not a subclass to test for. All calls are pure, so that a driver that
// passes its calls on to another compiles only when it passes on all; those with a body here do for a driver that has
// no better way.
//
// Threads: every method may be called from any thread at any time; calls on overlapping ranges must be ordered by the
// caller. Calls that touch the device are made inside a DriverScope (which makes the CUDA context current).
// Ranges: addresses and sizes given to Reserve/Map/SetAccess/Unmap are multiples of the page size, non-empty, and
// inside one reservation. Failure: a call that fails changed nothing.
#ifndef VKV_DRIVER_H_
#define VKV_DRIVER_H_

#include <cstdint>
#include <span>
#include <string>

#include "status.h"

namespace vkv {

class DriverHost;
namespace cuda {
class DriverCuda;
}

using PageHandle = uint64_t;  // one physical page; 0 is never valid
using Stream = uint64_t;      // the driver's own stream handle (a CUstream); 0 is its default stream
using Event = uint64_t;       // 0 is never valid

// Why a driver is unavailable (Status.what of kDriverUnavailable).
enum class Unavailable : int64_t {
  kNoLibrary = 1,      // libcuda.so.1 was not found
  kNoDevice = 2,       // the library is there, no device is
  kStubLibrary = 3,    // libcuda.so.1 is the toolkit's stub
  kInitFailed = 4,     // cuInit refused for another reason (see result)
  kNoSuchDevice = 5,   // the ordinal is out of range
  kMemoryRefused = 6,  // host: memfd_create or mmap refused
  kForked = 7,         // this process is a fork of the one that opened the driver
};

struct DriverInfo {
  std::string kind;                 // "cuda", "host", "mock": its name, for errors and defaults
  std::string kernels = "none";     // whose work its memory and streams take: "cpu", "cuda", or "none" of this package
  std::string device_name;          // "NVIDIA H200", "host memory"
  int32_t device = 0;               // ordinal
  int32_t driver_version = 0;       // CUDA: 13000 for 13.0; host: 0
  int32_t compute_capability = 0;   // CUDA: 90 for 9.0; host: 0
  uint64_t granularity_bytes = 0;   // every page size is a multiple of it
  uint64_t default_page_bytes = 0;  // the page size to use unless another is asked for
  uint64_t mapping_limit = 0;       // mappings this driver allows itself, beside the process's limit; 0: none
  bool has_streams = false;         // the default stream too is queued (host: its work is done when a call returns)
  bool has_host_access = false;     // the CPU may dereference mapped addresses
  bool has_zeroed_pages = false;    // a page's first content is zeros (elsewhere: undefined)
  bool has_readable_holes = false;  // reading an unmapped address of a reservation gives zeros instead of a fault
  bool has_memory = true;           // false: pages are only counted (mock, backing 'none'): Write and Read are
                                    // refused, Copy and Fill are checked and move nothing
};

struct MemoryInfo {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;      // for new pages, headroom for the rest of the process set aside (host); stale at once
  uint64_t resident_bytes = 0;  // physical memory that pages of this driver really hold now (host, mock); else created
  uint64_t live_pages = 0;      // created and not released
  uint64_t live_reservations = 0;
  uint64_t mappings = 0;          // kernel mappings in use (host), mapped pages elsewhere
  uint64_t process_mappings = 0;  // kernel mappings of all host drivers of the process; 0 elsewhere
};

// Plain memory, and the mapped addresses where it goes.
struct WritePiece {
  uint64_t to;
  const void* from;
  uint64_t bytes;
};

class Driver {
 public:
  virtual ~Driver() = default;  // releases what is left; never terminates

  virtual const DriverInfo& info() const = 0;
  // What only one class of driver can do: this driver, or one that it passes its calls on to; null where there is none.
  virtual DriverHost* AsHost() = 0;
  virtual cuda::DriverCuda* AsCuda() = 0;
  virtual Status QueryMemory(MemoryInfo& memory) = 0;
  // Whether kernel mappings run short (host): new pages, which merge with their neighbours, are then better than free
  // ones.
  virtual bool IsShortOfMappings() = 0;
  // True after a sticky failure: every later call returns kDriverLost and changes nothing.
  virtual bool is_lost() const = 0;

  // Makes the device current on this thread, and restores the previous one. Nests. Use DriverScope.
  virtual Status Enter() = 0;
  virtual void Leave() = 0;

  // Reserves addresses with nothing behind them, aligned to the largest power of two in `page_bytes` (the page size
  // that will be mapped there).
  virtual Status Reserve(uint64_t bytes, uint64_t page_bytes, uint64_t& address) = 0;
  // Pre: exactly a reservation; everything in it unmapped (else kDriverMisuse).
  virtual Status FreeReservation(uint64_t address, uint64_t bytes) = 0;

  // Creates one physical page, mapped nowhere. `near` is where it will be mapped first (0: unknown), a hint that lets
  // the host driver place neighbours so that the kernel merges them. kOutOfDeviceMemory when there is no room.
  virtual Status CreatePage(uint64_t page_bytes, uint64_t near, PageHandle& page) = 0;
  // Pre: mapped nowhere. Post: its memory is given back to the system.
  virtual Status ReleasePage(PageHandle page, uint64_t page_bytes) = 0;

  // Maps a whole page at `address`. Pre: the range is unmapped. Post: inaccessible until SetAccess. A page may be
  // mapped at several addresses. kOutOfMappings (host) when the kernel's mapping limit is near, here or in SetAccess.
  virtual Status Map(uint64_t address, uint64_t page_bytes, PageHandle page) = 0;
  // Maps pages side by side from `address` on, one after the other as Map does. On failure the first `mapped` are
  // mapped.
  virtual Status MapEach(uint64_t address, uint64_t page_bytes, std::span<const PageHandle> pages,
                         uint64_t& mapped) = 0;
  // Gives read and write access. Pre: the whole range is mapped; may span many pages.
  virtual Status SetAccess(uint64_t address, uint64_t bytes) = 0;
  // Pre: whole mappings, no hole; may span many pages. Post: unmapped, access gone, the pages live on.
  virtual Status Unmap(uint64_t address, uint64_t bytes) = 0;

  // From BeginUndo to EndUndo pages are mapped again that were unmapped just before: no limit of the driver's own
  // refuses that. Use UndoScope.
  virtual void BeginUndo() = 0;
  virtual void EndUndo() = 0;

  // Of mapped memory that the CPU may read, the bytes from `address` on, at most `bytes`, that lie side by side in one
  // file of the process, so that one system call can map them a second time; 0: not known.
  virtual uint64_t SharedRunBytes(uint64_t address, uint64_t bytes) = 0;

  // Copies between plain memory and mapped addresses; done when the call returns. They come after what was queued
  // through this driver on its default stream, and after nothing else: a caller waits for any other stream first.
  // kCopyOutOfRange outside mapped memory. No bytes only wait; of Copy and Fill they are done at once.
  virtual Status Write(uint64_t to, const void* from, uint64_t bytes) = 0;
  virtual Status Read(void* to, uint64_t from, uint64_t bytes) = 0;
  // Write for each piece, in order. On failure those before it may be written.
  virtual Status WriteEach(std::span<const WritePiece> pieces) = 0;
  // Read of a few bytes at addresses that may never have been touched: where their first touch would be a page fault
  // (host), the system copies instead.
  virtual Status ReadUntouched(void* to, uint64_t from, uint64_t bytes) = 0;
  // Registers memory of this process, so that the device copies there by itself while the CPU goes on. `address` and
  // `bytes` are multiples of 4,096; the range overlaps no registered one, is no device's, and shows the same memory
  // until UnregisterHost. A refusal (a limit on locked memory, say) leaves it as it was. Without streams: does nothing.
  virtual Status RegisterHost(uint64_t address, uint64_t bytes) = 0;
  // Pre: the start of a registered range, which no queued copy uses.
  virtual Status UnregisterHost(uint64_t address) = 0;
  // The address at which the device's own work sees memory registered from `address` on, until UnregisterHost.
  // kDriverUnsupported, or the driver's refusal, where it does not.
  virtual Status FindOnDevice(uint64_t address, uint64_t& on_device) = 0;
  // Copies mapped memory into plain memory, queued on `stream` where all of it lies in one registered range; to memory
  // without any it is done when the call returns. kCopyOutOfRange as Read.
  virtual Status Download(void* to, uint64_t from, uint64_t bytes, Stream stream) = 0;
  // Copies plain memory into mapped memory, queued on `stream`. Where all of `from` lies in one registered range it
  // must stay as it is until the stream has done that; elsewhere it may change as soon as the call returns.
  virtual Status Upload(uint64_t to, const void* from, uint64_t bytes, Stream stream) = 0;
  // Queued on `stream`; done when the call returns on the default stream if !has_streams. The ranges do not overlap.
  virtual Status Copy(uint64_t to, uint64_t from, uint64_t bytes, Stream stream) = 0;
  virtual Status Fill(uint64_t to, uint8_t value, uint64_t bytes, Stream stream) = 0;

  // If !has_streams, everything on the default stream is done already.
  virtual Status CreateStream(Stream& stream) = 0;
  virtual Status DestroyStream(Stream stream) = 0;
  virtual Status SynchronizeStream(Stream stream) = 0;          // waits until all work queued on it is done
  virtual Status RecordEvent(Stream stream, Event& event) = 0;  // a new event, done when the work queued so far is done
  virtual Status QueryEvent(Event event, bool& is_done) = 0;    // never waits
  virtual Status SynchronizeEvent(Event event) = 0;             // waits until it is done
  // Work queued on `stream` from here on runs after the event is done; the caller does not wait.
  virtual Status WaitEvent(Stream stream, Event event) = 0;
  virtual Status DestroyEvent(Event event) = 0;
};

inline DriverHost* Driver::AsHost() { return nullptr; }

inline cuda::DriverCuda* Driver::AsCuda() { return nullptr; }

inline bool Driver::IsShortOfMappings() { return false; }

inline Status Driver::MapEach(uint64_t address, uint64_t page_bytes, std::span<const PageHandle> pages,
                              uint64_t& mapped) {
  for (mapped = 0; mapped < pages.size(); ++mapped)
    if (Status status = Map(address + mapped * page_bytes, page_bytes, pages[mapped]); !status.ok()) return status;
  return Ok();
}

inline void Driver::BeginUndo() {}

inline void Driver::EndUndo() {}

inline uint64_t Driver::SharedRunBytes(uint64_t, uint64_t) { return 0; }

inline Status Driver::WriteEach(std::span<const WritePiece> pieces) {
  for (const WritePiece& piece : pieces)
    if (Status status = Write(piece.to, piece.from, piece.bytes); !status.ok()) return status;
  return Ok();
}

inline Status Driver::ReadUntouched(void* to, uint64_t from, uint64_t bytes) { return Read(to, from, bytes); }

inline Status Driver::FindOnDevice(uint64_t address, uint64_t&) {
  return Fail(Code::kDriverUnsupported, "FindOnDevice", static_cast<int64_t>(address));
}

// Makes the driver's device current for one batch of calls on this thread.
class DriverScope {
 public:
  explicit DriverScope(Driver& driver) : driver_(driver), status_(driver.Enter()) {}
  ~DriverScope() {
    if (status_.ok()) driver_.Leave();
  }
  DriverScope(const DriverScope&) = delete;
  DriverScope& operator=(const DriverScope&) = delete;
  const Status& status() const { return status_; }

 private:
  Driver& driver_;
  Status status_;
};

// While it lives, mapping is the undo of a change that has failed.
class UndoScope {
 public:
  explicit UndoScope(Driver& driver) : driver_(driver) { driver_.BeginUndo(); }
  ~UndoScope() { driver_.EndUndo(); }
  UndoScope(const UndoScope&) = delete;
  UndoScope& operator=(const UndoScope&) = delete;

 private:
  Driver& driver_;
};

}  // namespace vkv

#endif  // VKV_DRIVER_H_
