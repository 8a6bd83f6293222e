#include "mapper.h"

namespace vkv {
namespace {

// Expected while other users hold the pages; the growth happens in the foreground if it must.
bool IsWantOfRoom(Code code) {
  return code == Code::kOutOfPages || code == Code::kOutOfDeviceMemory || code == Code::kOutOfMappings ||
         code == Code::kSlotBusy;
}

}  // namespace

// The thread of one or more mappers. Its members are theirs, too, under its mutex.
class Mapper::Worker {
 public:
  // A slot of a mapper's cache.
  struct Turn {
    Mapper* mapper = nullptr;
    int32_t slot = 0;
    bool operator==(const Turn&) const = default;
  };

  ~Worker() {
    {
      std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    wake_.notify_one();
    thread_.Join();
  }
  Status Start() { return thread_.Start<Worker, &Worker::Run>(this, "vkv-mapper"); }
  bool is_creating() const { return creating_ != nullptr; }

  std::mutex mutex_;  // guards all below
  std::condition_variable wake_;
  std::condition_variable finished_;  // a row or a page
  std::deque<Turn> queue_;            // slots with a request, each once
  Turn working_;                      // mapper: null between rows
  Mapper* creating_ = nullptr;        // a page is being created for its pool
  Mapper* wants_pages_ = nullptr;     // the free list may be short
  bool is_cancelled_ = false;         // what is at hand is not gone on with

 private:
  void Run();
  // Maps one row of the next slot, or creates one page for the free list; releases the lock meanwhile.
  void MapRow(std::unique_lock<std::mutex>& lock);
  void CreatePage(std::unique_lock<std::mutex>& lock);

  QuietThread thread_;
  bool is_stopping_ = false;
};

Mapper::Mapper(KvCache& cache) : cache_(cache), wanted_rows_(cache.layout().slots(), 0) {}

Status Mapper::Start() {
  worker_ = std::make_shared<Worker>();
  if (cache_.pool().ready_pages() > 0) worker_->wants_pages_ = this;
  return worker_->Start();
}

Status Mapper::Join(const Mapper& other) {
  if (!other.worker_) return Fail(Code::kClosed, "mapper");
  worker_ = other.worker_;
  return Ok();
}

void Mapper::Request(std::span<const GrowCommand> commands) {
  if (!worker_) return;
  {
    std::lock_guard lock(worker_->mutex_);
    for (const GrowCommand& command : commands) {
      if (wanted_rows_[command.slot] == 0) {
        worker_->queue_.push_back({this, command.slot});
        ++queued_slots_;
      }
      wanted_rows_[command.slot] = command.rows;
    }
  }
  worker_->wake_.notify_one();
}

void Mapper::Refill() {
  if (!worker_ || cache_.pool().ready_pages() == 0) return;
  {
    std::lock_guard lock(worker_->mutex_);
    worker_->wants_pages_ = this;
  }
  worker_->wake_.notify_one();
}

void Mapper::Cancel(int32_t slot) {
  if (!worker_) return;
  const Worker::Turn turn{this, slot};
  std::unique_lock lock(worker_->mutex_);
  if (wanted_rows_[slot] != 0) {
    wanted_rows_[slot] = 0;
    queued_slots_ -= std::erase(worker_->queue_, turn);
  }
  if (worker_->working_ != turn) return;
  worker_->is_cancelled_ = true;
  worker_->finished_.wait(lock, [&] { return worker_->working_ != turn; });
}

void Mapper::Quiesce() {
  if (!worker_) return;
  std::unique_lock lock(worker_->mutex_);
  DropRequests(lock);
}

// Pre: locked. Waits for the row or page at hand.
void Mapper::DropRequests(std::unique_lock<std::mutex>& lock) {
  Worker& worker = *worker_;
  for (int32_t& rows : wanted_rows_) rows = 0;
  if (queued_slots_ > 0) std::erase_if(worker.queue_, [this](const Worker::Turn& turn) { return turn.mapper == this; });
  queued_slots_ = 0;
  worker.wants_pages_ = nullptr;
  const auto is_at_hand = [&] { return worker.working_.mapper == this || worker.is_creating(); };
  if (!is_at_hand()) return;
  worker.is_cancelled_ = true;
  worker.finished_.wait(lock, [&] { return !is_at_hand(); });
}

MapperState Mapper::state() const {
  if (!worker_) return state_;
  std::lock_guard lock(worker_->mutex_);
  MapperState state = state_;
  state.is_idle = queued_slots_ == 0 && worker_->working_.mapper != this && worker_->wants_pages_ == nullptr &&
                  !worker_->is_creating();
  return state;
}

void Mapper::Stop() {
  if (!worker_) return;
  {
    std::unique_lock lock(worker_->mutex_);
    DropRequests(lock);
  }
  worker_.reset();
}

void Mapper::Worker::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return is_stopping_ || !queue_.empty() || wants_pages_ != nullptr; });
    if (is_stopping_) return;
    if (queue_.empty())
      CreatePage(lock);
    else
      MapRow(lock);
  }
}

void Mapper::Worker::MapRow(std::unique_lock<std::mutex>& lock) {
  working_ = queue_.front();
  queue_.pop_front();
  const auto [mapper, slot] = working_;
  int32_t& wanted_rows = mapper->wanted_rows_[slot];
  const int32_t rows = wanted_rows;
  wanted_rows = 0;
  --mapper->queued_slots_;
  is_cancelled_ = false;
  lock.unlock();
  bool is_done = false;
  const Status status = mapper->cache_.GrowAhead(slot, rows, is_done);
  lock.lock();
  working_ = {};
  finished_.notify_all();
  if (IsWantOfRoom(status.code)) {
    ++mapper->state_.dropped_requests;
  } else if (!status.ok()) {
    ++mapper->state_.late_errors;
    mapper->state_.last_error = status;
  } else {
    if (!is_cancelled_ && mapper->cache_.pool().ready_pages() > 0) wants_pages_ = mapper;
    if (is_done || is_cancelled_ || wanted_rows != 0) return;
    wanted_rows = rows;
    queue_.push_back({mapper, slot});
    ++mapper->queued_slots_;
  }
}

void Mapper::Worker::CreatePage(std::unique_lock<std::mutex>& lock) {
  Mapper* const mapper = creating_ = wants_pages_;
  wants_pages_ = nullptr;
  is_cancelled_ = false;
  lock.unlock();
  bool is_created = false;
  const Status status = mapper->cache_.pool().CreateAhead(is_created);
  lock.lock();
  creating_ = nullptr;
  if (is_created && !is_cancelled_) wants_pages_ = mapper;
  if (!status.ok() && !IsWantOfRoom(status.code)) {
    ++mapper->state_.late_errors;
    mapper->state_.last_error = status;
  }
  finished_.notify_all();
}

}  // namespace vkv
