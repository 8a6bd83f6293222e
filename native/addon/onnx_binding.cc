// NativeOnnx: a session of onnxruntime, seen from JavaScript. Converts and forwards; lib/onnx validates, and keeps the
// memory of a job until its answer.
#include <napi.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "addon/arguments.h"
#include "addon/bindings.h"
#include "addon/context.h"
#include "addon/driver_binding.h"
#include "onnx/onnx_session.h"

namespace vkv::addon {

class NativeOnnx : public Napi::ObjectWrap<NativeOnnx>, public Stoppable {
 public:
  static void Define(Napi::Env env, Napi::Object exports);

  // ({library, folder, threads, model, module}, onAnswer: (id, error or undefined, text, outputs) => void,
  // driver of the device that computes, or undefined)
  explicit NativeOnnx(const Napi::CallbackInfo& info);
  ~NativeOnnx() override;

  void StopForTeardown() override;

 private:
  Napi::Value Open(const Napi::CallbackInfo& info);  // (id)
  // (id, pass or undefined, then of each tensor: whether it is an output, name, type, dims, memory or undefined)
  // A pass: {layers, spans, slots, maxTokens, cacheDtype}
  Napi::Value Run(const Napi::CallbackInfo& info);
  Napi::Value Abort(const Napi::CallbackInfo& info);  // (id)
  Napi::Value Close(const Napi::CallbackInfo& info);
  void StopSession();

  EnvContext* context_ = nullptr;  // null once torn down
  std::shared_ptr<Notifier<onnx::Answer>> answers_;
  std::unique_ptr<onnx::OnnxSession> session_;  // null once closed
};

namespace {

constexpr size_t kCommonArguments = 2;
constexpr size_t kTensorArguments = 5;
constexpr size_t kLayerNumbers = 19;  // lib/kernels/kernel-layers.ts writes them
constexpr int64_t kMostElements = int64_t{1} << 40;

napi_typedarray_type ArrayOf(onnx::Element element) {
  switch (element) {
    case onnx::Element::kInt64: return napi_bigint64_array;
    case onnx::Element::kFloat: return napi_float32_array;
    case onnx::Element::kInt32: return napi_int32_array;
    case onnx::Element::kFloat16: return napi_uint16_array;
    case onnx::Element::kUint8:
    case onnx::Element::kBool: break;
  }
  return napi_uint8_array;
}

onnx::NamedTensor ReadTensor(Arguments& given, size_t at) {
  onnx::NamedTensor tensor;
  tensor.name = given.String(at + 1);
  tensor.element = static_cast<onnx::Element>(given.Integer(at + 2, 1, 16));
  int64_t elements = 1;
  for (const double length : given.Doubles(at + 3)) {
    const auto whole = length >= 0 && length <= static_cast<double>(kMostElements) ? static_cast<int64_t>(length) : -1;
    if (whole < 0 || (whole > 0 && elements > kMostElements / whole)) given.Refuse(whole);
    if (!given.ok()) return tensor;
    tensor.dims.push_back(whole);
    elements *= whole;
  }
  const int64_t element_bytes = onnx::BytesOf(tensor.element);
  if (element_bytes == 0) given.Refuse(static_cast<int64_t>(tensor.element));
  if (!given.IsUndefined(at + 4)) {
    tensor.data = given.Buffer<void>(at + 4, ArrayOf(tensor.element), static_cast<uint64_t>(elements * element_bytes));
  }
  return tensor;
}

kernels::Tensor ToTensor(const double* from) {
  return {static_cast<uint64_t>(from[0]), static_cast<int64_t>(from[1]), static_cast<int64_t>(from[2]),
          static_cast<int64_t>(from[3]),  static_cast<int32_t>(from[4]), static_cast<int32_t>(from[5])};
}

onnx::Pass ReadPass(Arguments& given) {
  onnx::Pass pass;
  const std::span<double> layers = given.Doubles("layers");
  for (size_t at = 0; at + kLayerNumbers <= layers.size(); at += kLayerNumbers) {
    const double* const from = layers.data() + at;
    pass.layers.push_back({ToTensor(from), ToTensor(from + 6)});
  }
  const int64_t slots = given.Integer("slots", 1, INT32_MAX), max_tokens = given.Integer("maxTokens", 1, INT32_MAX);
  pass.cache_dtype = static_cast<kernels::Dtype>(given.Integer("cacheDtype", 0, 2));
  const std::span<const int32_t> numbers = given.Int32s("spans");
  const std::span<const kernels::Span> spans(reinterpret_cast<const kernels::Span*>(numbers.data()),
                                             numbers.size_bytes() / sizeof(kernels::Span));
  for (const kernels::Span& span : spans) {
    const bool is_inside = span.slot >= 0 && span.slot < slots && span.length >= 0 && span.tokens >= 1 &&
                           span.tokens <= max_tokens - span.length && span.first_row == pass.rows;
    if (!is_inside) given.Refuse(span.slot);
    pass.rows += span.tokens;
  }
  if (given.ok()) pass.spans.assign(spans.begin(), spans.end());
  return pass;
}

napi_value ArrayOfDims(napi_env env, const std::vector<int64_t>& dims) {
  napi_value buffer = nullptr, array = nullptr;
  void* data = nullptr;
  if (napi_create_arraybuffer(env, dims.size() * sizeof(double), &data, &buffer) != napi_ok) return nullptr;
  for (size_t at = 0; at < dims.size(); ++at) static_cast<double*>(data)[at] = static_cast<double>(dims[at]);
  return napi_create_typedarray(env, napi_float64_array, dims.size(), buffer, 0, &array) == napi_ok ? array : nullptr;
}

// Plain Node-API: where JavaScript can no longer run, each of these calls fails without a further effect.
void Tell(Napi::Env env, Napi::Function function, const onnx::Answer& answer) {
  napi_value arguments[4] = {};
  bool is_made = napi_create_double(env, static_cast<double>(answer.id), &arguments[0]) == napi_ok &&
                 napi_create_string_utf8(env, answer.text.c_str(), answer.text.size(), &arguments[2]) == napi_ok &&
                 napi_create_array(env, &arguments[3]) == napi_ok;
  uint32_t count = 0;
  for (const onnx::Answer::Output& output : answer.outputs) {
    napi_value parts[3] = {};
    void* data = nullptr;
    is_made = is_made && napi_create_double(env, static_cast<double>(output.element), &parts[0]) == napi_ok &&
              (parts[1] = ArrayOfDims(env, output.dims)) != nullptr &&
              napi_create_arraybuffer(env, output.bytes.size(), &data, &parts[2]) == napi_ok;
    if (is_made && !output.bytes.empty()) std::memcpy(data, output.bytes.data(), output.bytes.size());
    for (napi_value part : parts) is_made = is_made && napi_set_element(env, arguments[3], count++, part) == napi_ok;
  }
  arguments[1] = MakeError(env, answer.status, {}, answer.text);
  if (is_made && arguments[1] != nullptr)
    (void)napi_call_function(env, env.Undefined(), function, 4, arguments, nullptr);
}

}  // namespace

void NativeOnnx::Define(Napi::Env env, Napi::Object exports) {
  exports.Set("NativeOnnx",
              DefineClass(env, "NativeOnnx",
                          {InstanceMethod<&NativeOnnx::Open>("open"), InstanceMethod<&NativeOnnx::Run>("run"),
                           InstanceMethod<&NativeOnnx::Abort>("abort"), InstanceMethod<&NativeOnnx::Close>("close")}));
}

NativeOnnx::NativeOnnx(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeOnnx>(info) {
  Arguments given(info, size_t{0}, "NativeOnnx");
  onnx::SessionOptions options;
  options.library = given.String("library");
  options.folder = given.String("folder");
  options.threads = static_cast<int32_t>(given.Integer("threads", 1, 1024));
  options.model = given.Uint8s("model");
  if (!info[1].IsFunction()) given.Refuse();
  if (info[2].IsObject()) {
    options.place = {NativeDriver::Of(info[2]), given.String("module")};
    if (!options.place.driver || options.place.driver->AsCuda() == nullptr) given.Refuse();
  }
  if (ThrowIfFailed(info.Env(), given.status())) return;
  answers_ = std::make_shared<Notifier<onnx::Answer>>();
  const auto tell = [answers = std::weak_ptr(answers_)](Napi::Env env, Napi::Function function,
                                                        const onnx::Answer& answer) {
    if (const auto own = answers.lock()) own->Await(-1);
    Tell(env, function, answer);
  };
  if (!answers_->Open(info.Env(), info[1].As<Napi::Function>(), tell)) return;
  session_ = std::make_unique<onnx::OnnxSession>(
      std::move(options), [answers = answers_](onnx::Answer&& answer) { answers->Notify(std::move(answer)); });
  context_ = &ContextOf(info.Env());
  context_->stoppables.insert(this);
}

NativeOnnx::~NativeOnnx() {
  if (context_ != nullptr) context_->stoppables.erase(this);
  StopSession();
}

void NativeOnnx::StopForTeardown() {
  context_ = nullptr;
  StopSession();
}

void NativeOnnx::StopSession() {
  if (session_) session_->Stop();
  session_.reset();
  if (answers_) answers_->Close();
}

Napi::Value NativeOnnx::Open(const Napi::CallbackInfo& info) {
  Arguments given(info, "open");
  const int64_t id = given.Integer(0, 0, kLargestInteger);
  const Status status = session_ ? given.status() : Fail(Code::kClosed, "onnx session");
  if (ThrowIfFailed(info.Env(), status)) return info.Env().Undefined();
  answers_->Await(1);
  if (ThrowIfFailed(info.Env(), session_->Open(id))) answers_->Await(-1);
  return info.Env().Undefined();
}

Napi::Value NativeOnnx::Run(const Napi::CallbackInfo& info) {
  Arguments given(info, "run");
  onnx::Job job;
  job.id = given.Integer(0, 0, kLargestInteger);
  Status status = given.status();
  if (!given.IsUndefined(1)) {
    Arguments pass(info, size_t{1}, "run");
    job.pass = ReadPass(pass);
    if (status.ok()) status = pass.status();
  }
  for (size_t at = kCommonArguments; at + kTensorArguments <= info.Length() && given.ok(); at += kTensorArguments) {
    const bool is_output = given.Boolean(at);
    (is_output ? job.outputs : job.inputs).push_back(ReadTensor(given, at));
    if (!is_output && job.inputs.back().data == nullptr) given.Refuse();
  }
  if (!session_) status = Fail(Code::kClosed, "onnx session");
  if (status.ok()) status = given.status();
  if (ThrowIfFailed(info.Env(), status)) return info.Env().Undefined();
  answers_->Await(1);
  session_->Run(std::move(job));
  return info.Env().Undefined();
}

Napi::Value NativeOnnx::Abort(const Napi::CallbackInfo& info) {
  Arguments given(info, "abort");
  const int64_t id = given.Integer(0, 0, kLargestInteger);
  if (given.ok() && session_) session_->Abort(id);
  return info.Env().Undefined();
}

Napi::Value NativeOnnx::Close(const Napi::CallbackInfo& info) {
  StopSession();
  return info.Env().Undefined();
}

void DefineOnnx(Napi::Env env, Napi::Object exports) { NativeOnnx::Define(env, exports); }

}  // namespace vkv::addon
