// StreamModel: the simulated device's streams and events, and the work queued on them.
//
// Work of one stream is done in order. Streams wait for each other where they are told to (Wait), and beside the
// default stream: its work comes after what all blocking streams held before, and theirs after what it held. The model
// only says what is pending and hands work out when it is to be done; its owner does it. An event is done when what
// came before it on its stream is done. Handles are never used again. Threads: guarded by its owner's lock.
#ifndef VKV_MOCK_STREAM_MODEL_H_
#define VKV_MOCK_STREAM_MODEL_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

namespace vkv::mock {

// A range that work uses.
struct Touch {
  uint64_t address = 0;
  uint64_t bytes = 0;
  bool is_write = false;
};

enum class WorkKind { kCopy, kFill, kUpload, kDownload, kKernel, kWait };

class SimulatedKernel;

// The first so many pieces of work of a stream.
struct Span {
  uint64_t stream = 0;
  uint64_t count = 0;
};

struct Work {
  WorkKind kind = WorkKind::kKernel;
  std::vector<Touch> touches;  // a copy, a download, an upload from registered memory: destination, source; a fill,
                               // another upload: destination
  uint8_t value = 0;           // a fill's
  uint64_t step = 0;           // a kernel's, in the journal
  // A kernel's that is simulated, with its parameter; null for one that only stands for its touches.
  std::shared_ptr<const SimulatedKernel> kernel = nullptr;
  std::vector<uint8_t> parameter = {};  // of an upload from memory that is not registered: its bytes
  bool is_replayed = false;             // of a graph: its ranges may have changed since the capture
  std::vector<Span> behind = {};        // work of other streams that comes first
};

// Where the bytes of an upload are now.
inline uint64_t SourceOf(const Work& upload) {
  return upload.touches.size() > 1 ? upload.touches[1].address : reinterpret_cast<uint64_t>(upload.parameter.data());
}

class StreamModel {
 public:
  StreamModel();

  // A blocking stream is ordered with the default stream.
  uint64_t CreateStream(bool is_blocking);
  bool DestroyStream(uint64_t stream);  // false: not live. What is pending on it will still be done.
  bool IsLiveStream(uint64_t stream) const;
  void Enqueue(uint64_t stream, Work work);
  bool IsIdle(uint64_t stream) const;

  // From BeginCapture to EndCapture work is recorded and not pending. False: it is captured already, or a default
  // stream.
  bool BeginCapture(uint64_t stream);
  bool IsCapturing(uint64_t stream) const;
  static bool IsDefault(uint64_t stream);  // the one that blocking streams are ordered with
  bool IsAnyCapturing() const;
  bool IsBlockingCaptured() const;
  void Record(uint64_t stream, Work work);
  void InvalidateCaptures();
  // False: the capture was invalidated; it has ended nevertheless.
  bool EndCapture(uint64_t stream, std::vector<Work>& works);

  // Lets `content`, bytes at an address, be what it will be when the pending uploads of the stream are done.
  void Preview(uint64_t stream, uint64_t address, std::vector<uint8_t>& content) const;

  uint64_t CreateEvent();
  bool DestroyEvent(uint64_t event);  // false: not live
  bool IsLiveEvent(uint64_t event) const { return events_.contains(event); }
  void Record(uint64_t event, uint64_t stream);
  bool IsDone(uint64_t event) const;
  // What is queued on `stream` from here on is done after the work before the event, which is done first when it must.
  void Wait(uint64_t stream, uint64_t event);

  // What is pending now on a stream and on those that it is ordered with, the stream's own last; before an event; on
  // all.
  std::vector<Span> PendingOn(uint64_t stream) const;
  std::vector<Span> PendingBefore(uint64_t event) const { return events_.at(event); }
  std::vector<Span> PendingAnywhere() const;
  // Takes out what is still pending of these, in order, for its owner to do now, behind what it is ordered behind.
  std::vector<Work> Take(const std::vector<Span>& spans);

  // Whether pending work uses memory in the range.
  bool IsBusy(uint64_t address, uint64_t bytes) const;
  uint64_t pending() const;

  uint64_t streams() const { return live_streams_; }
  uint64_t events() const { return events_.size(); }

 private:
  struct StreamState {
    std::deque<Work> pending;
    uint64_t done = 0;  // how many were taken out
    bool is_destroyed = false;
    bool is_blocking = true;
    bool is_capturing = false;
    bool is_invalid = false;  // the capture
    std::vector<Work> captured;
  };

  static uint64_t Normalize(uint64_t stream);
  bool IsDone(const std::vector<Span>& spans) const;
  void Take(const std::vector<Span>& spans, std::vector<Work>& taken);
  void ForgetDestroyed();

  std::map<uint64_t, StreamState> streams_;
  std::map<uint64_t, std::vector<Span>> events_;  // what each stands behind
  uint64_t live_streams_ = 0;                     // created and not destroyed; not the default streams
  uint64_t last_handle_ = uint64_t{0x57} << 32;
};

}  // namespace vkv::mock

#endif  // VKV_MOCK_STREAM_MODEL_H_
