// A SyncTimer where the time of day goes back by an hour: prints a line for each thing that came to pass, and is ended
// by SIGALRM where one does not.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <semaphore>

#include "store/sync_timer.h"

namespace {

time_t ahead = 0;

}  // namespace

// Instead of the C library's.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += ahead;
  return result;
}

int main() {
  alarm(300);  // also where the machine is busy
  std::counting_semaphore<> calls(0);
  {
    ahead = 3600;  // the kernel is an hour behind
    vkv::store::SyncTimer timer([&] { calls.release(); }, std::chrono::milliseconds(1));
    timer.Hurry();  // not started yet
    if (!timer.Start().ok()) return 1;
    calls.acquire();
    calls.acquire();
    std::puts("is called again and again");
  }
  {
    vkv::store::SyncTimer timer([&] { calls.release(); }, std::chrono::hours(1));
    if (!timer.Start().ok()) return 1;
    while (calls.try_acquire()) {
    }
    timer.Hurry();
    calls.acquire();
    std::puts("is hurried");
    timer.Stop();
    timer.Stop();
  }
  std::puts("stops");
  return 0;
}
