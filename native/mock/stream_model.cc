#include "mock/stream_model.h"

#include <algorithm>
#include <utility>

namespace vkv::mock {
namespace {

// CUDA's names for streams that are always there: 0 and 1 are the default stream, 2 is the default stream of
// the thread.
constexpr uint64_t kDefaultStream = 0;
constexpr uint64_t kLegacyStream = 1;
constexpr uint64_t kPerThreadStream = 2;

bool Overlaps(const Touch& touch, uint64_t address, uint64_t bytes) {
  return touch.address < address + bytes && address < touch.address + touch.bytes;
}

}  // namespace

StreamModel::StreamModel() {
  streams_[kDefaultStream];
  streams_[kPerThreadStream];
}

uint64_t StreamModel::CreateStream(bool is_blocking) {
  const uint64_t stream = ++last_handle_;
  streams_[stream].is_blocking = is_blocking;
  ++live_streams_;
  return stream;
}

bool StreamModel::DestroyStream(uint64_t stream) {
  if (!IsLiveStream(stream) || stream <= kPerThreadStream) return false;
  StreamState& state = streams_.at(stream);
  state.is_destroyed = true;
  --live_streams_;
  if (state.pending.empty()) streams_.erase(stream);
  return true;
}

bool StreamModel::IsLiveStream(uint64_t stream) const {
  const auto found = streams_.find(Normalize(stream));
  return found != streams_.end() && !found->second.is_destroyed;
}

void StreamModel::Enqueue(uint64_t stream, Work work) {
  streams_.at(Normalize(stream)).pending.push_back(std::move(work));
}

bool StreamModel::IsIdle(uint64_t stream) const { return streams_.at(Normalize(stream)).pending.empty(); }

bool StreamModel::BeginCapture(uint64_t stream) {
  if (stream <= kPerThreadStream || streams_.at(stream).is_capturing) return false;
  streams_.at(stream).is_capturing = true;
  return true;
}

bool StreamModel::IsCapturing(uint64_t stream) const { return streams_.at(Normalize(stream)).is_capturing; }

bool StreamModel::IsDefault(uint64_t stream) { return Normalize(stream) == kDefaultStream; }

bool StreamModel::IsAnyCapturing() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream.second.is_capturing; });
}

bool StreamModel::IsBlockingCaptured() const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [](const auto& stream) { return stream.second.is_capturing && stream.second.is_blocking; });
}

void StreamModel::Record(uint64_t stream, Work work) { streams_.at(stream).captured.push_back(std::move(work)); }

void StreamModel::InvalidateCaptures() {
  for (auto& [handle, stream] : streams_) stream.is_invalid = stream.is_capturing;
}

bool StreamModel::EndCapture(uint64_t stream, std::vector<Work>& works) {
  StreamState& state = streams_.at(stream);
  const bool is_valid = !state.is_invalid;
  works = std::exchange(state.captured, {});
  state.is_capturing = state.is_invalid = false;
  return is_valid;
}

void StreamModel::Preview(uint64_t stream, uint64_t address, std::vector<uint8_t>& content) const {
  for (const Work& work : streams_.at(Normalize(stream)).pending) {
    if (work.kind != WorkKind::kUpload || !Overlaps(work.touches[0], address, content.size())) continue;
    const uint64_t from = std::max(address, work.touches[0].address);
    const uint64_t to = std::min(address + content.size(), work.touches[0].address + work.touches[0].bytes);
    std::copy_n(work.parameter.begin() + static_cast<int64_t>(from - work.touches[0].address), to - from,
                content.begin() + static_cast<int64_t>(from - address));
  }
}

uint64_t StreamModel::CreateEvent() {
  const uint64_t event = ++last_handle_;
  events_[event];  // never recorded: done
  return event;
}

bool StreamModel::DestroyEvent(uint64_t event) { return events_.erase(event) != 0; }

void StreamModel::Record(uint64_t event, uint64_t stream) {
  const StreamState& state = streams_.at(Normalize(stream));
  events_.at(event) = {Normalize(stream), state.done + state.pending.size()};
}

bool StreamModel::HasReached(uint64_t stream, uint64_t target) const {
  const auto found = streams_.find(stream);
  return found == streams_.end() || found->second.done >= target;
}

bool StreamModel::IsDone(uint64_t event) const {
  const EventState& state = events_.at(event);
  return HasReached(state.stream, state.target);
}

void StreamModel::Wait(uint64_t stream, uint64_t event) {
  if (IsDone(event)) return;
  const EventState& state = events_.at(event);
  Work wait;
  wait.kind = WorkKind::kWait;
  wait.awaited_stream = state.stream;
  wait.awaited_target = state.target;
  Enqueue(stream, std::move(wait));
}

std::vector<Work> StreamModel::TakeStream(uint64_t stream) {
  std::vector<Work> taken;
  Take(Normalize(stream), UINT64_MAX, taken);
  ForgetDestroyed();
  return taken;
}

std::vector<Work> StreamModel::TakeUpTo(uint64_t event) {
  std::vector<Work> taken;
  const EventState& state = events_.at(event);
  Take(state.stream, state.target, taken);
  ForgetDestroyed();
  return taken;
}

std::vector<Work> StreamModel::TakeAll() {
  std::vector<Work> taken;
  for (const auto& [stream, state] : streams_) Take(stream, UINT64_MAX, taken);
  ForgetDestroyed();
  return taken;
}

bool StreamModel::IsBusy(uint64_t address, uint64_t bytes) const {
  for (const auto& [handle, stream] : streams_) {
    for (const Work& work : stream.pending) {
      for (const Touch& touch : work.touches) {
        if (Overlaps(touch, address, bytes)) return true;
      }
    }
  }
  return false;
}

uint64_t StreamModel::pending() const {
  uint64_t count = 0;
  for (const auto& [handle, stream] : streams_) count += stream.pending.size();
  return count;
}

uint64_t StreamModel::Normalize(uint64_t stream) { return stream == kLegacyStream ? kDefaultStream : stream; }

// What a stream waits for is taken before what waits: a device would have done it by then.
void StreamModel::Take(uint64_t stream, uint64_t target, std::vector<Work>& taken) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  StreamState& state = found->second;
  while (!state.pending.empty() && state.done < target) {
    Work work = std::move(state.pending.front());
    state.pending.pop_front();
    if (work.kind == WorkKind::kWait) Take(work.awaited_stream, work.awaited_target, taken);
    ++state.done;
    taken.push_back(std::move(work));
  }
}

void StreamModel::ForgetDestroyed() {
  std::erase_if(streams_, [](const auto& entry) { return entry.second.is_destroyed && entry.second.pending.empty(); });
}

}  // namespace vkv::mock
