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
  for (const Span& span : PendingOn(stream)) {
    if (span.stream != Normalize(stream)) work.behind.push_back(span);
  }
  streams_.at(Normalize(stream)).pending.push_back(std::move(work));
}

bool StreamModel::IsIdle(uint64_t stream) const { return PendingOn(stream).empty(); }

std::vector<Span> StreamModel::PendingOn(uint64_t stream) const {
  std::vector<Span> spans;
  const auto add = [&spans](uint64_t handle, const StreamState& state) {
    if (!state.pending.empty()) spans.push_back({handle, state.done + state.pending.size()});
  };
  const uint64_t own = Normalize(stream);
  if (own == kDefaultStream) {
    for (const auto& [handle, state] : streams_) {
      if (state.is_blocking && handle != own) add(handle, state);
    }
  } else if (streams_.at(own).is_blocking) {
    add(kDefaultStream, streams_.at(kDefaultStream));
  }
  add(own, streams_.at(own));
  return spans;
}

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
    const auto* const bytes = reinterpret_cast<const uint8_t*>(SourceOf(work));
    std::copy_n(bytes + (from - work.touches[0].address), to - from,
                content.begin() + static_cast<int64_t>(from - address));
  }
}

uint64_t StreamModel::CreateEvent() {
  const uint64_t event = ++last_handle_;
  events_[event];  // never recorded: done
  return event;
}

bool StreamModel::DestroyEvent(uint64_t event) { return events_.erase(event) != 0; }

void StreamModel::Record(uint64_t event, uint64_t stream) { events_.at(event) = PendingOn(stream); }

bool StreamModel::IsDone(uint64_t event) const { return IsDone(events_.at(event)); }

bool StreamModel::IsDone(const std::vector<Span>& spans) const {
  return std::all_of(spans.begin(), spans.end(), [this](const Span& span) {
    const auto found = streams_.find(span.stream);
    return found == streams_.end() || found->second.done >= span.count;
  });
}

void StreamModel::Wait(uint64_t stream, uint64_t event) {
  if (IsDone(event)) return;
  Work wait;
  wait.kind = WorkKind::kWait;
  wait.behind = events_.at(event);
  Enqueue(stream, std::move(wait));
}

std::vector<Span> StreamModel::PendingAnywhere() const {
  std::vector<Span> spans;
  for (const auto& [handle, state] : streams_) spans.push_back({handle, state.done + state.pending.size()});
  return spans;
}

std::vector<Work> StreamModel::Take(const std::vector<Span>& spans) {
  std::vector<Work> taken;
  Take(spans, taken);
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

// What work waits for is taken before it: a device would have done it by then. It was queued earlier, so that nothing
// waits for itself.
void StreamModel::Take(const std::vector<Span>& spans, std::vector<Work>& taken) {
  for (const auto& [stream, count] : spans) {
    const auto found = streams_.find(stream);
    if (found == streams_.end()) continue;
    StreamState& state = found->second;
    while (!state.pending.empty() && state.done < count) {
      Work work = std::move(state.pending.front());
      state.pending.pop_front();
      Take(work.behind, taken);
      ++state.done;
      taken.push_back(std::move(work));
    }
  }
}

void StreamModel::ForgetDestroyed() {
  std::erase_if(streams_, [](const auto& entry) { return entry.second.is_destroyed && entry.second.pending.empty(); });
}

}  // namespace vkv::mock
