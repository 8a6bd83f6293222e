#include "store/sync_timer.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace vkv::store {

SyncTimer::~SyncTimer() {
  Stop();
  if (wake_ >= 0) close(wake_);
}

Status SyncTimer::Start() {
  if (wake_ < 0) wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) return {Code::kDriverCallFailed, "eventfd", errno, errno == EMFILE ? "EMFILE" : "", 0, 0};
  return thread_.Start<SyncTimer, &SyncTimer::Run, Standing::kBackground>(this, "vkv-sync");
}

void SyncTimer::Hurry() {
  if (wake_ >= 0) (void)eventfd_write(wake_, 1);
}

void SyncTimer::Stop() {
  is_stopping_ = true;
  Hurry();
  thread_.Join();
}

void SyncTimer::Run() {
  while (!is_stopping_) {
    pollfd wake = {wake_, POLLIN, 0};
    (void)poll(&wake, 1, static_cast<int>(interval_.count()));
    eventfd_t hurries = 0;
    (void)eventfd_read(wake_, &hurries);
    if (!is_stopping_) call_();
  }
}

}  // namespace vkv::store
