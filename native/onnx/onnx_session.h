// OnnxSession: a graph in onnxruntime, opened and run on a thread of its own, one job after the other.
//
// Inputs and outputs lie in memory that is given, and are not copied; it must stay until the job's answer. Every job is
// answered once, on that thread. Threads: all but Work from the owner's. Stop ends what runs between two nodes.
#ifndef VKV_ONNX_ONNX_SESSION_H_
#define VKV_ONNX_ONNX_SESSION_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onnx/attention_operator.h"
#include "onnx/ort_api.h"
#include "quiet_thread.h"

namespace vkv::onnx {

struct SessionOptions {
  std::string library;             // path of libonnxruntime
  std::span<const uint8_t> model;  // the graph's bytes; read until Open is answered
  std::string folder;              // where files beside the graph are; empty: there are none
  int32_t threads = 1;             // the session's thread included
  Place place;                     // on a device, nodes that its provider has not are computed on the CPU
};

struct NamedTensor {
  std::string name;
  Element element = Element::kFloat;
  std::vector<int64_t> dims;
  void* data = nullptr;  // null, of an output: it comes with the answer
};

struct Job {
  int64_t id = 0;
  std::vector<NamedTensor> inputs;
  std::vector<NamedTensor> outputs;
  std::optional<Pass> pass;  // of a graph with AttentionOperators
};

struct Answer {
  int64_t id = 0;
  Status status;
  std::string text;  // onnxruntime's, or the version after Open
  struct Output {
    Element element;
    std::vector<int64_t> dims;
    std::vector<uint8_t> bytes;
  };
  std::vector<Output> outputs;  // those without memory, in their order
};

class OnnxSession {
 public:
  OnnxSession(SessionOptions options, std::function<void(Answer&&)> deliver)
      : options_(std::move(options)), deliver_(std::move(deliver)) {}
  ~OnnxSession() { Stop(); }
  OnnxSession(const OnnxSession&) = delete;
  OnnxSession& operator=(const OnnxSession&) = delete;

  // Starts the thread, which opens the graph first; that is answered as job `id`.
  Status Open(int64_t id);
  void Run(Job&& job);
  // The job fails soon, unless it is over.
  void Abort(int64_t id);
  // Waits until nothing runs; jobs that wait are not answered. Idempotent.
  void Stop();

 private:
  void Work();
  Status OpenGraph(std::string& text);
  Status AppendCuda(OrtSessionOptions* options, std::string& text);
  Status RunJob(Job& job, Answer& answer);
  Status MakeValues(std::span<NamedTensor> tensors, std::vector<OrtValue*>& values, std::string& text);
  Status ReadOutput(const OrtValue* value, Answer& answer);
  void CloseGraph();
  // Of what onnxruntime returned: its message to `text`.
  Status Taken(OrtStatus* status, const char* call, std::string& text) const;

  const SessionOptions options_;
  const std::function<void(Answer&&)> deliver_;
  QuietThread thread_;

  std::mutex mutex_;  // guards the next six
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  OrtRunOptions* running_ = nullptr;
  int64_t running_id_ = -1;   // none
  bool is_given_up_ = false;  // the running one
  bool is_stopping_ = false;

  // The thread's own.
  int64_t open_id_ = 0;
  std::shared_ptr<const OrtApi> api_;
  std::unique_ptr<AttentionOperator> attention_;
  OrtEnv* env_ = nullptr;
  OrtMemoryInfo* memory_ = nullptr;
  OrtCustomOpDomain* domain_ = nullptr;
  OrtSession* session_ = nullptr;
};

}  // namespace vkv::onnx

#endif  // VKV_ONNX_ONNX_SESSION_H_
