// HostStream: commands that a thread of its own runs in their order while the caller goes on. Commands are plain data,
// kept side by side in memory that is used again: queueing allocates nothing once it was as long before.
//
// Each command has a ticket, its number from 1 on. What a command uses must stay until its ticket is done; the caller
// sees to that. A command that fails, or Cancel, drops the commands behind it up to the next mark; work that others
// rely on is queued as kAlways and runs all the same. Threads: any. Where the system refuses a thread, and once it was
// stopped, nothing runs later: commands run in the caller, or, stopped, never.
#ifndef VKV_HOST_HOST_STREAM_H_
#define VKV_HOST_HOST_STREAM_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <type_traits>
#include <vector>

#include "quiet_thread.h"
#include "status.h"

namespace vkv {

class HostStream {
 public:
  enum class Kind : uint8_t {
    kDroppable,  // not run behind a failure or a cancel
    kAlways,
    kMark,  // counted as done before it is run: what it wakes finds everything done
  };

  // The first failure since the last mark: its status, and how many commands were queued before it since that mark.
  struct Failure {
    Status status;
    uint64_t index = 0;
  };

  HostStream() = default;
  ~HostStream() { Stop(); }
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // Queues `Status command(std::span<const Entry>)` with a copy of the entries.
  template <typename Entry, typename Command>
  void Queue(Kind kind, std::span<const Entry> entries, const Command& command) {
    static_assert(std::is_trivially_copyable_v<Command> && std::is_trivially_copyable_v<Entry>);
    static_assert(alignof(Command) <= sizeof(Unit) && alignof(Entry) <= sizeof(Unit));
    const auto run = [](HostStream&, const void* at, const void* list, size_t count) {
      return (*static_cast<const Command*>(at))(std::span<const Entry>(static_cast<const Entry*>(list), count));
    };
    Add({run, kind, UnitsOf(sizeof(Command)), UnitsOf(entries.size_bytes()), entries.size()}, &command, sizeof(Command),
        entries.data(), entries.size_bytes());
  }

  // Queues `void tell(const Failure&)`, with the first failure since the last mark, if any. Always run, unless the
  // stream is stopped before.
  template <typename Tell>
  void Mark(const Tell& tell) {
    static_assert(std::is_trivially_copyable_v<Tell> && alignof(Tell) <= sizeof(Unit));
    const auto run = [](HostStream& stream, const void* at, const void*, size_t) {
      (*static_cast<const Tell*>(at))(stream.TakeFailure());
      return Ok();
    };
    Add({run, Kind::kMark, UnitsOf(sizeof(Tell)), 0, 0}, &tell, sizeof(Tell), nullptr, 0);
  }

  // The ticket of the last command; 0: none yet.
  uint64_t queued();
  bool IsDone(uint64_t ticket) const { return done_.load(std::memory_order_acquire) >= ticket; }
  void Wait(uint64_t ticket);
  void WaitForAll() { Wait(queued()); }

  // For tests: the nth droppable command from now on (1: the next) is not run and fails with the errno; 0 withdraws
  // that.
  void FailCommand(uint64_t nth, int error);
  // For tests: the nth droppable command from now on (1: the next) does not begin, nor do those behind it, until this
  // is withdrawn with 0, or they are dropped.
  void Hold(uint64_t nth) { holds_at_.store(nth); }

  // Drops the droppable commands that have not begun.
  void Cancel();
  // Has the thread finish the command at hand and drop all others; it does not wait for that.
  void RequestStop();
  // The same, and joins the thread. Idempotent.
  void Stop();

 private:
  struct alignas(16) Unit {
    std::byte bytes[16];
  };
  struct Record {
    Status (*run)(HostStream& stream, const void* command, const void* entries, size_t count);
    Kind kind;
    uint32_t command_units;
    uint32_t entry_units;
    size_t count;
  };
  static constexpr uint32_t UnitsOf(size_t bytes) {
    return static_cast<uint32_t>((bytes + sizeof(Unit) - 1) / sizeof(Unit));
  }

  void Add(const Record& record, const void* command, size_t command_bytes, const void* entries, size_t entry_bytes);
  void Work();
  bool Take(std::vector<Unit>& units);  // false: it stops
  void RunAll(const std::vector<Unit>& units);
  void RunOne(const Record& record, const void* command, const void* entries);  // and counts it
  void WaitWhileHeld(const Record& record, uint64_t ticket);
  bool IsDropped(const Record& record, uint64_t ticket) const;
  bool IsToFail(const Record& record);
  Failure TakeFailure();
  void SetDone(uint64_t ticket);

  QuietThread thread_;
  std::atomic<uint64_t> queued_{0};
  std::atomic<uint64_t> done_{0};
  std::atomic<uint64_t> cancelled_{0};  // droppable commands up to this ticket are not begun any more
  std::atomic<bool> is_stopping_{false};
  std::atomic<int> waiting_{0};        // threads in Wait
  std::atomic<uint64_t> fails_in_{0};  // for tests: commands until one fails
  std::atomic<int> fails_with_{0};
  std::atomic<uint64_t> holds_at_{0};  // for tests; 0: none

  // Of the thread that runs commands.
  Failure failure_;
  uint64_t last_mark_ = 0;

  std::mutex mutex_;  // guards all below; `queued_` is written under it
  std::condition_variable wake_;
  std::condition_variable progress_;
  std::vector<Unit> incoming_;
  bool is_sleeping_ = false;
  bool is_started_ = false;
  bool has_ended_ = false;      // its thread
  bool has_no_thread_ = false;  // the system refused one
};

}  // namespace vkv

#endif  // VKV_HOST_HOST_STREAM_H_
