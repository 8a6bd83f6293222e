#include "onnx/onnx_session.h"

#include <algorithm>
#include <cstring>

namespace vkv::onnx {
namespace {

constexpr int32_t kFatal = 4;            // onnxruntime writes nothing to the terminal below it
constexpr int32_t kDeviceAllocator = 0;  // of CreateCpuMemoryInfo: memory that is given
constexpr int32_t kDefaultMemory = 0;

// Where tensors in files of their own are, for a graph that is given by its bytes.
constexpr const char* kFolderKey = "session.model_external_initializers_file_folder_path";

}  // namespace

Status OnnxSession::Taken(OrtStatus* status, const char* call, std::string& text) const {
  if (status == nullptr) return Ok();
  text = api_->GetErrorMessage(status);
  const int32_t code = api_->GetErrorCode(status);
  api_->ReleaseStatus(status);
  return Fail(Code::kOnnxFailed, call, code);
}

Status OnnxSession::Open(int64_t id) {
  open_id_ = id;
  return thread_.Start<OnnxSession, &OnnxSession::Work>(this, "vkv-onnx");
}

void OnnxSession::Run(Job&& job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  wake_.notify_one();
}

void OnnxSession::Abort(int64_t id) {
  std::unique_lock lock(mutex_);
  if (running_id_ == id) {
    is_given_up_ = true;
    if (running_ != nullptr) api_->ReleaseStatus(api_->RunOptionsSetTerminate(running_));
    return;
  }
  const auto job = std::find_if(jobs_.begin(), jobs_.end(), [id](const Job& other) { return other.id == id; });
  if (job == jobs_.end()) return;
  jobs_.erase(job);
  lock.unlock();
  deliver_({id, Fail(Code::kOnnxFailed, "Run"), "it was given up", {}});
}

void OnnxSession::Stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    if (running_ != nullptr) api_->ReleaseStatus(api_->RunOptionsSetTerminate(running_));
    wake_.notify_one();
  }
  thread_.Join();
}

void OnnxSession::Work() {
  Answer opened{open_id_, {}, {}, {}};
  opened.status = OpenGraph(opened.text);
  deliver_(std::move(opened));
  while (true) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return is_stopping_ || !jobs_.empty(); });
    if (is_stopping_) break;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    running_id_ = job.id;
    is_given_up_ = false;
    lock.unlock();
    Answer answer{job.id, {}, {}, {}};
    answer.status = RunJob(job, answer);
    lock.lock();
    running_id_ = -1;
    lock.unlock();
    deliver_(std::move(answer));
  }
  CloseGraph();
}

Status OnnxSession::OpenGraph(std::string& text) {
  VKV_RETURN_IF_ERROR(OrtApi::Load(options_.library, api_, text));
  VKV_RETURN_IF_ERROR(Taken(api_->CreateEnv(kFatal, "virtual-kv", &env_), "CreateEnv", text));
  VKV_RETURN_IF_ERROR(
      Taken(api_->CreateCpuMemoryInfo(kDeviceAllocator, kDefaultMemory, &memory_), "CreateCpuMemoryInfo", text));
  attention_ = std::make_unique<AttentionOperator>(api_, options_.threads, options_.place);
  VKV_RETURN_IF_ERROR(Taken(api_->CreateCustomOpDomain("virtualkv", &domain_), "CreateCustomOpDomain", text));
  VKV_RETURN_IF_ERROR(Taken(attention_->AddTo(domain_), "CustomOpDomain_Add", text));
  OrtSessionOptions* options = nullptr;
  VKV_RETURN_IF_ERROR(Taken(api_->CreateSessionOptions(&options), "CreateSessionOptions", text));
  Status status = Taken(api_->SetIntraOpNumThreads(options, options_.threads), "SetIntraOpNumThreads", text);
  if (status.ok()) status = Taken(api_->AddCustomOpDomain(options, domain_), "AddCustomOpDomain", text);
  if (status.ok() && options_.place.driver) status = AppendCuda(options, text);
  if (status.ok() && !options_.folder.empty()) {
    status =
        Taken(api_->AddSessionConfigEntry(options, kFolderKey, options_.folder.c_str()), "AddSessionConfigEntry", text);
  }
  if (status.ok()) {
    status = Taken(api_->CreateSessionFromArray(env_, options_.model.data(), options_.model.size(), options, &session_),
                   "CreateSessionFromArray", text);
  }
  api_->ReleaseSessionOptions(options);
  if (status.ok()) text = api_->version();
  return status;
}

Status OnnxSession::AppendCuda(OrtSessionOptions* options, std::string& text) {
  OrtCudaOptions* cuda = nullptr;
  Status status = Taken(api_->CreateCudaOptions(&cuda), "CreateCUDAProviderOptions", text);
  if (status.ok()) {
    const std::string device = std::to_string(options_.place.driver->info().device);
    const char* const key = "device_id";
    const char* const value = device.c_str();
    status = Taken(api_->UpdateCudaOptions(cuda, &key, &value, 1), "UpdateCUDAProviderOptions", text);
  }
  if (status.ok()) {
    status = Taken(api_->AppendCuda(options, cuda), "SessionOptionsAppendExecutionProvider_CUDA_V2", text);
  }
  if (cuda != nullptr) api_->ReleaseCudaOptions(cuda);
  if (status.ok()) return status;
  text =
      "its CUDA provider cannot be used (" + text + "), which it has where ONNXRUNTIME_NODE_INSTALL=skip was not set";
  return Fail(Code::kOnnxUnavailable, status.call);
}

void OnnxSession::CloseGraph() {
  if (!api_) return;
  if (session_ != nullptr) api_->ReleaseSession(session_);
  if (domain_ != nullptr) api_->ReleaseCustomOpDomain(domain_);
  if (memory_ != nullptr) api_->ReleaseMemoryInfo(memory_);
  if (env_ != nullptr) api_->ReleaseEnv(env_);
  attention_.reset();
}

Status OnnxSession::MakeValues(std::span<NamedTensor> tensors, std::vector<OrtValue*>& values, std::string& text) {
  for (NamedTensor& tensor : tensors) {
    OrtValue* value = nullptr;
    if (tensor.data != nullptr) {
      int64_t bytes = BytesOf(tensor.element);
      for (const int64_t length : tensor.dims) bytes *= length;
      VKV_RETURN_IF_ERROR(
          Taken(api_->CreateTensorWithData(memory_, tensor.data, static_cast<size_t>(bytes), tensor.dims.data(),
                                           tensor.dims.size(), tensor.element, &value),
                "CreateTensorWithDataAsOrtValue", text));
    }
    values.push_back(value);
  }
  return Ok();
}

Status OnnxSession::RunJob(Job& job, Answer& answer) {
  if (session_ == nullptr) return Fail(Code::kClosed, "onnx session");
  std::vector<OrtValue*> inputs, outputs;
  Status status = MakeValues(job.inputs, inputs, answer.text);
  if (status.ok()) status = MakeValues(job.outputs, outputs, answer.text);
  OrtRunOptions* options = nullptr;
  if (status.ok()) status = Taken(api_->CreateRunOptions(&options), "CreateRunOptions", answer.text);
  if (status.ok()) {
    std::vector<const char*> input_names, output_names;
    for (const NamedTensor& tensor : job.inputs) input_names.push_back(tensor.name.c_str());
    for (const NamedTensor& tensor : job.outputs) output_names.push_back(tensor.name.c_str());
    {
      const std::lock_guard lock(mutex_);
      running_ = options;
      if (is_stopping_ || is_given_up_) api_->ReleaseStatus(api_->RunOptionsSetTerminate(options));
    }
    attention_->Begin(job.pass ? &*job.pass : nullptr);
    status = Taken(api_->Run(session_, options, input_names.data(), inputs.data(), inputs.size(), output_names.data(),
                             output_names.size(), outputs.data()),
                   "Run", answer.text);
    attention_->Begin(nullptr);
    const std::lock_guard lock(mutex_);
    running_ = nullptr;
  }
  for (size_t at = 0; at < outputs.size() && status.ok(); ++at) {
    if (job.outputs[at].data == nullptr) status = ReadOutput(outputs[at], answer);
  }
  if (options != nullptr) api_->ReleaseRunOptions(options);
  for (OrtValue* const value : inputs) api_->ReleaseValue(value);
  for (OrtValue* const value : outputs) {
    if (value != nullptr) api_->ReleaseValue(value);
  }
  return status;
}

Status OnnxSession::ReadOutput(const OrtValue* value, Answer& answer) {
  OrtTensorShape* shape = nullptr;
  VKV_RETURN_IF_ERROR(Taken(api_->GetTensorTypeAndShape(value, &shape), "GetTensorTypeAndShape", answer.text));
  Answer::Output output{};
  size_t rank = 0;
  Status status = Taken(api_->GetDimensionsCount(shape, &rank), "GetDimensionsCount", answer.text);
  output.dims.resize(rank);
  if (status.ok()) {
    status = Taken(api_->GetDimensions(shape, output.dims.data(), rank), "GetDimensions", answer.text);
  }
  if (status.ok()) {
    status = Taken(api_->GetTensorElementType(shape, &output.element), "GetTensorElementType", answer.text);
  }
  api_->ReleaseTensorShape(shape);
  VKV_RETURN_IF_ERROR(status);
  void* data = nullptr;
  VKV_RETURN_IF_ERROR(
      Taken(api_->GetTensorMutableData(const_cast<OrtValue*>(value), &data), "GetTensorMutableData", answer.text));
  int64_t bytes = BytesOf(output.element);
  for (const int64_t length : output.dims) bytes *= length;
  output.bytes.resize(static_cast<size_t>(bytes));
  if (bytes > 0) std::memcpy(output.bytes.data(), data, output.bytes.size());
  answer.outputs.push_back(std::move(output));
  return Ok();
}

}  // namespace vkv::onnx
