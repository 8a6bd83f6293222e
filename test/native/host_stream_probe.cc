// Commands on a host stream: their order, their copies, failures, drops, waits and ends, printed as lines `name:
// answer`.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "host/host_stream.h"

namespace {

using vkv::Code;
using vkv::Fail;
using vkv::HostStream;
using vkv::Ok;
using Kind = HostStream::Kind;

constexpr std::span<const int> kNone;

// Holds a stream where it is until it is opened.
struct Gate {
  std::atomic<bool> is_open{false};
  std::atomic<bool> is_reached{false};

  void Queue(HostStream& stream) {
    stream.Queue(Kind::kAlways, kNone, [gate = this](std::span<const int>) {
      gate->is_reached.store(true);
      while (!gate->is_open.load()) std::this_thread::yield();
      return Ok();
    });
  }
  void Reach() const {
    while (!is_reached.load()) std::this_thread::yield();
  }
};

void Note(HostStream& stream, std::vector<int>& to, Kind kind, int number) {
  stream.Queue(kind, kNone, [list = &to, number](std::span<const int>) {
    list->push_back(number);
    return Ok();
  });
}

void FailNext(HostStream& stream) {
  stream.Queue(Kind::kDroppable, kNone, [](std::span<const int>) { return Fail(Code::kDriverCallFailed, "test", 7); });
}

void Print(const char* name, const std::vector<int>& list) {
  std::printf("%s:", name);
  for (const int number : list) std::printf(" %d", number);
  std::printf("\n");
}

// Entries are copied: the caller's may change at once.
void Order(int rounds) {
  HostStream stream;
  std::vector<int> sums;
  sums.reserve(static_cast<size_t>(rounds));
  std::vector<int> entries;
  for (int round = 0; round < rounds; ++round) {
    entries.assign(static_cast<size_t>(round % 70), round);
    stream.Queue(Kind::kDroppable, std::span<const int>(entries), [list = &sums](std::span<const int> given) {
      int sum = 0;
      for (const int entry : given) sum += entry;
      list->push_back(sum);
      return Ok();
    });
  }
  stream.WaitForAll();
  int wrong = 0;
  for (int round = 0; round < rounds; ++round) wrong += sums[static_cast<size_t>(round)] != round % 70 * round ? 1 : 0;
  std::printf("order: %zu commands, %d wrong\n", sums.size(), wrong);
}

void Failures() {
  HostStream stream;
  std::vector<int> ran;
  std::vector<int> told;
  const auto mark = [&] {
    stream.Mark([list = &told](const HostStream::Failure& failure) {
      list->push_back(failure.status.ok() ? -1 : static_cast<int>(failure.index));
    });
  };
  Note(stream, ran, Kind::kDroppable, 1);
  mark();
  Note(stream, ran, Kind::kDroppable, 2);
  Note(stream, ran, Kind::kDroppable, 3);
  FailNext(stream);
  FailNext(stream);
  Note(stream, ran, Kind::kDroppable, 4);
  Note(stream, ran, Kind::kAlways, 5);
  mark();
  Note(stream, ran, Kind::kDroppable, 6);
  mark();
  // A mark is done before it is run; what is queued behind it is done when it has run.
  stream.Queue(Kind::kAlways, kNone, [](std::span<const int>) { return Ok(); });
  stream.WaitForAll();
  Print("failure, ran", ran);
  Print("failure, told", told);
}

void Cancel() {
  HostStream stream;
  Gate gate;
  std::vector<int> ran;
  gate.Queue(stream);
  Note(stream, ran, Kind::kDroppable, 1);
  Note(stream, ran, Kind::kAlways, 2);
  stream.Cancel();
  Note(stream, ran, Kind::kDroppable, 3);
  const uint64_t last = stream.queued();
  std::printf("cancel: done before %d", stream.IsDone(last) ? 1 : 0);
  gate.is_open.store(true);
  stream.Wait(last);
  std::printf(", after %d\n", stream.IsDone(last) ? 1 : 0);
  Print("cancel, ran", ran);
}

// A stream may wait for another, and both may end while it does.
void Ends() {
  std::vector<int> ran;
  {
    HostStream first, second;
    Gate gate;
    gate.Queue(first);
    Note(first, ran, Kind::kAlways, 1);
    second.Queue(Kind::kAlways, kNone, [from = &first, ticket = first.queued()](std::span<const int>) {
      from->Wait(ticket);
      return Ok();
    });
    Note(second, ran, Kind::kAlways, 2);
    gate.Reach();
    first.RequestStop();
    second.RequestStop();
    gate.is_open.store(true);
    second.Stop();
    first.Stop();
    Note(first, ran, Kind::kAlways, 3);
    first.WaitForAll();
  }
  Print("ends, ran", ran);
}

void Waiters(int rounds) {
  HostStream stream;
  std::atomic<int> late{0};
  for (int round = 0; round < rounds; ++round) {
    std::atomic<int> value{0};
    stream.Queue(Kind::kDroppable, kNone, [to = &value](std::span<const int>) {
      to->store(1);
      return Ok();
    });
    const uint64_t ticket = stream.queued();
    std::vector<std::thread> waiters;
    for (int waiter = 0; waiter < 3; ++waiter) {
      waiters.emplace_back([&] {
        stream.Wait(ticket);
        if (value.load() != 1) ++late;
      });
    }
    for (std::thread& waiter : waiters) waiter.join();
  }
  std::printf("waiters: %d came early\n", late.load());
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 1000;
  Order(rounds);
  Failures();
  Cancel();
  Ends();
  Waiters(rounds / 10);
  return 0;
}
