#include "mapper.h"

namespace vkv {
namespace {

// Expected while other users hold the pages; the growth happens in the foreground if it must.
bool IsWantOfRoom(Code code) {
  return code == Code::kOutOfPages || code == Code::kOutOfDeviceMemory || code == Code::kOutOfMappings ||
         code == Code::kSlotBusy;
}

}  // namespace

Mapper::Mapper(KvCache& cache)
    : cache_(cache), wanted_rows_(cache.layout().slots(), 0), wants_pages_(cache.pool().ready_pages() > 0) {}

Status Mapper::Start() { return thread_.Start<Mapper, &Mapper::Run>(this, "vkv-mapper"); }

void Mapper::Request(std::span<const GrowCommand> commands) {
  {
    std::lock_guard lock(mutex_);
    for (const GrowCommand& command : commands) {
      if (wanted_rows_[command.slot] == 0) queue_.push_back(command.slot);
      wanted_rows_[command.slot] = command.rows;
    }
  }
  wake_.notify_one();
}

void Mapper::Refill() {
  if (cache_.pool().ready_pages() == 0) return;
  {
    std::lock_guard lock(mutex_);
    wants_pages_ = true;
  }
  wake_.notify_one();
}

void Mapper::Cancel(int32_t slot) {
  std::unique_lock lock(mutex_);
  if (wanted_rows_[slot] != 0) {
    wanted_rows_[slot] = 0;
    std::erase(queue_, slot);
  }
  if (working_slot_ != slot) return;
  is_working_cancelled_ = true;
  row_finished_.wait(lock, [&] { return working_slot_ != slot; });
}

void Mapper::Quiesce() {
  std::unique_lock lock(mutex_);
  for (int32_t slot : queue_) wanted_rows_[slot] = 0;
  queue_.clear();
  is_working_cancelled_ = true;
  wants_pages_ = false;
  row_finished_.wait(lock, [this] { return working_slot_ == kNoSlot && !is_creating_; });
}

MapperState Mapper::state() const {
  std::lock_guard lock(mutex_);
  const bool is_idle = queue_.empty() && working_slot_ == kNoSlot && !wants_pages_ && !is_creating_;
  return {is_idle, late_errors_, last_error_, dropped_requests_};
}

void Mapper::Stop() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_one();
  thread_.Join();
}

void Mapper::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return is_stopping_ || !queue_.empty() || wants_pages_; });
    if (is_stopping_) return;
    if (queue_.empty())
      CreatePage(lock);
    else
      MapRow(lock);
  }
}

void Mapper::MapRow(std::unique_lock<std::mutex>& lock) {
  const int32_t slot = queue_.front();
  const int32_t rows = wanted_rows_[slot];
  queue_.pop_front();
  wanted_rows_[slot] = 0;
  working_slot_ = slot;
  is_working_cancelled_ = false;
  lock.unlock();
  bool is_done = false;
  const Status status = cache_.GrowAhead(slot, rows, is_done);
  lock.lock();
  working_slot_ = kNoSlot;
  row_finished_.notify_all();
  if (IsWantOfRoom(status.code)) {
    ++dropped_requests_;
  } else if (!status.ok()) {
    ++late_errors_;
    last_error_ = status;
  } else {
    if (!is_working_cancelled_ && cache_.pool().ready_pages() > 0) wants_pages_ = true;
    if (is_done || is_working_cancelled_ || wanted_rows_[slot] != 0) return;
    wanted_rows_[slot] = rows;
    queue_.push_back(slot);
  }
}

void Mapper::CreatePage(std::unique_lock<std::mutex>& lock) {
  wants_pages_ = false;
  is_creating_ = true;
  is_working_cancelled_ = false;
  lock.unlock();
  bool is_created = false;
  const Status status = cache_.pool().CreateAhead(is_created);
  lock.lock();
  is_creating_ = false;
  if (is_created && !is_working_cancelled_) wants_pages_ = true;
  if (!status.ok() && !IsWantOfRoom(status.code)) {
    ++late_errors_;
    last_error_ = status;
  }
  row_finished_.notify_all();
}

}  // namespace vkv
