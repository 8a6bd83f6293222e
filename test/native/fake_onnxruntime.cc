// A library with the entry points of onnxruntime's C API that native/onnx calls, which runs AttentionOperators alone:
// on the memory, and on the stream, that a test names. So the operator of the CUDA provider is tried without
// onnxruntime's provider, on a simulated device and on a real one.
//
// A "model" is a text of one line for each node: its operator and its attributes, `Attention layer=0 num_heads=4 …`. A
// run takes inputs of int64: "stream" [address], and of node N "q0.N" (queries), "q1.N" (keys) … "q5.N" (sinks) and
// "output.N": [address, dims …]. Its one output, "journal", is text: what the session and the run were asked for.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "onnx/ort_api.h"

namespace vkv::onnx {

struct OrtStatus {
  OrtCode code;
  std::string text;
};
struct OrtValue {
  Element element = Element::kFloat;
  std::vector<int64_t> dims;
  void* data = nullptr;
  std::string own;
};
struct OrtTensorShape {
  const OrtValue* value;
};
struct OrtCudaOptions {
  std::string text;
};
struct OrtCustomOpDomain {
  std::vector<const CustomOp*> ops;
};
struct OrtSessionOptions {
  OrtCustomOpDomain* domain = nullptr;
  std::string journal;
};
struct OrtKernelInfo {
  std::map<std::string, std::string> attributes;
};
struct OrtKernelContext {
  OrtValue* inputs[6] = {};
  OrtValue* output = nullptr;
  void* stream = nullptr;
  std::string* journal = nullptr;
};
struct Node {
  const CustomOp* op;
  void* kernel;
};
struct OrtSession {
  std::string journal;
  std::vector<Node> nodes;
};

namespace {

OrtStatus* Refusal(const std::string& text) { return new OrtStatus{OrtCode::kFail, text}; }

OrtStatus* CreateStatus(OrtCode code, const char* message) { return new OrtStatus{code, message}; }
int32_t GetErrorCode(const OrtStatus* status) { return static_cast<int32_t>(status->code); }
const char* GetErrorMessage(const OrtStatus* status) { return status->text.c_str(); }
void ReleaseStatus(OrtStatus* status) { delete status; }

// What has no content here.
OrtStatus* Make(void** made) {
  *made = std::malloc(1);
  return nullptr;
}
OrtStatus* CreateEnv(int32_t, const char*, void** env) { return Make(env); }
OrtStatus* CreateCpuMemoryInfo(int32_t, int32_t, void** memory) { return Make(memory); }
void Free(void* made) { std::free(made); }
OrtStatus* SetThreads(OrtSessionOptions*, int32_t) { return nullptr; }
OrtStatus* AddEntry(OrtSessionOptions*, const char*, const char*) { return nullptr; }
OrtStatus* Terminate(void*) { return nullptr; }

OrtStatus* CreateOptions(OrtSessionOptions** options) {
  *options = new OrtSessionOptions();
  return nullptr;
}
void ReleaseOptions(OrtSessionOptions* options) { delete options; }
OrtStatus* CreateDomain(const char*, OrtCustomOpDomain** domain) {
  *domain = new OrtCustomOpDomain();
  return nullptr;
}
void ReleaseDomain(OrtCustomOpDomain* domain) { delete domain; }
OrtStatus* AddOp(OrtCustomOpDomain* domain, const CustomOp* op) {
  domain->ops.push_back(op);
  return nullptr;
}
OrtStatus* AddDomain(OrtSessionOptions* options, OrtCustomOpDomain* domain) {
  options->domain = domain;
  return nullptr;
}

OrtStatus* CreateCuda(OrtCudaOptions** cuda) {
  *cuda = new OrtCudaOptions();
  return nullptr;
}
OrtStatus* UpdateCuda(OrtCudaOptions* cuda, const char* const* keys, const char* const* values, size_t count) {
  for (size_t at = 0; at < count; ++at) cuda->text += std::string(" ") + keys[at] + "=" + values[at];
  return nullptr;
}
OrtStatus* AppendCuda(OrtSessionOptions* options, const OrtCudaOptions* cuda) {
  options->journal += "CUDA" + cuda->text + "\n";
  return nullptr;
}
void ReleaseCuda(OrtCudaOptions* cuda) { delete cuda; }

OrtStatus* CreateSession(const void*, const void* model, size_t bytes, const OrtSessionOptions* options,
                         OrtSession** session) {
  auto made = std::make_unique<OrtSession>();
  made->journal = options->journal;
  std::istringstream lines(std::string(static_cast<const char*>(model), bytes));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, word;
    words >> name;
    OrtKernelInfo info;
    while (words >> word) info.attributes[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    const CustomOp* found = nullptr;
    for (const CustomOp* op : options->domain->ops) {
      if (name == op->GetName(op)) found = op;
    }
    if (found == nullptr) return Refusal("there is no operator " + name);
    const char* const provider = found->GetProvider(found);
    made->journal += name + " on " + (provider == nullptr ? "the CPU" : provider) + "\n";
    void* kernel = nullptr;
    if (OrtStatus* const status = found->CreateKernelV2(found, nullptr, &info, &kernel)) return status;
    made->nodes.push_back({found, kernel});
  }
  *session = made.release();
  return nullptr;
}
void ReleaseSession(OrtSession* session) {
  for (const Node& node : session->nodes) node.op->Destroy(node.kernel);
  delete session;
}

OrtStatus* GetFloat(const OrtKernelInfo* info, const char* name, float* value) {
  *value = std::strtof(info->attributes.at(name).c_str(), nullptr);
  return nullptr;
}
OrtStatus* GetInteger(const OrtKernelInfo* info, const char* name, int64_t* value) {
  *value = std::atoll(info->attributes.at(name).c_str());
  return nullptr;
}

OrtStatus* CreateTensor(const void*, void* data, size_t, const int64_t* dims, size_t rank, Element element,
                        OrtValue** value) {
  *value = new OrtValue{element, {dims, dims + rank}, data, {}};
  return nullptr;
}
void ReleaseValue(OrtValue* value) { delete value; }
OrtStatus* GetData(OrtValue* value, void** data) {
  *data = value->data;
  return nullptr;
}
OrtStatus* GetShape(const OrtValue* value, OrtTensorShape** shape) {
  *shape = new OrtTensorShape{value};
  return nullptr;
}
void ReleaseShape(OrtTensorShape* shape) { delete shape; }
OrtStatus* GetElement(const OrtTensorShape* shape, Element* element) {
  *element = shape->value->element;
  return nullptr;
}
OrtStatus* GetRank(const OrtTensorShape* shape, size_t* rank) {
  *rank = shape->value->dims.size();
  return nullptr;
}
OrtStatus* GetDims(const OrtTensorShape* shape, int64_t* dims, size_t) {
  std::memcpy(dims, shape->value->dims.data(), shape->value->dims.size() * sizeof(int64_t));
  return nullptr;
}

OrtStatus* GetInput(const OrtKernelContext* context, size_t at, const OrtValue** value) {
  *value = context->inputs[at];
  return nullptr;
}
OrtStatus* GetOutput(OrtKernelContext* context, size_t, const int64_t* dims, size_t rank, OrtValue** value) {
  if (std::vector<int64_t>(dims, dims + rank) != context->output->dims) return Refusal("an output of another shape");
  *value = context->output;
  return nullptr;
}
OrtStatus* GetStream(const OrtKernelContext* context, void** stream) {
  *stream = context->stream;
  *context->journal += "its stream\n";
  return nullptr;
}

// The tensor that an input describes: an address, and dims.
std::unique_ptr<OrtValue> Described(const OrtValue& input, Element element) {
  const auto* const numbers = static_cast<const int64_t*>(input.data);
  std::vector<int64_t> dims(numbers + 1, numbers + input.dims[0]);
  return std::unique_ptr<OrtValue>(new OrtValue{element, dims, reinterpret_cast<void*>(numbers[0]), {}});
}

OrtStatus* Run(OrtSession* session, const void*, const char* const* names, const OrtValue* const* inputs, size_t count,
               const char* const*, size_t, OrtValue** outputs) {
  std::map<std::string, const OrtValue*> given;
  for (size_t at = 0; at < count; ++at) given[names[at]] = inputs[at];
  std::string journal = session->journal;
  for (size_t node = 0; node < session->nodes.size(); ++node) {
    const auto& [op, kernel] = session->nodes[node];
    std::vector<std::unique_ptr<OrtValue>> tensors;
    const auto tensor = [&](const std::string& name, Element element) -> OrtValue* {
      const auto found = given.find(name + "." + std::to_string(node));
      if (found == given.end()) return nullptr;
      return tensors.emplace_back(Described(*found->second, element)).get();
    };
    OrtKernelContext context;
    for (size_t at = 0; at < 6; ++at) {
      context.inputs[at] = tensor("q" + std::to_string(at), op->GetInputType(op, at));
    }
    context.output = tensor("output", op->GetOutputType(op, 0));
    context.stream = reinterpret_cast<void*>(*static_cast<const int64_t*>(given.at("stream")->data));
    context.journal = &journal;
    if (OrtStatus* const status = op->ComputeV2(kernel, &context)) return status;
  }
  auto* const text = new OrtValue{Element::kUint8, {static_cast<int64_t>(journal.size())}, nullptr, journal};
  text->data = text->own.data();
  outputs[0] = text;
  return nullptr;
}

void Missing() { std::abort(); }

void* const* Table() {
  static void* table[512];
  for (void*& entry : table) entry = reinterpret_cast<void*>(Missing);
  const struct {
    int place;
    void* function;
  } entries[] = {
#define FAKE(place, function) {place, reinterpret_cast<void*>(function)}
      FAKE(0, CreateStatus),    FAKE(1, GetErrorCode),
      FAKE(2, GetErrorMessage), FAKE(3, CreateEnv),
      FAKE(8, CreateSession),   FAKE(9, Run),
      FAKE(10, CreateOptions),  FAKE(24, SetThreads),
      FAKE(26, CreateDomain),   FAKE(27, AddOp),
      FAKE(28, AddDomain),      FAKE(39, Make),
      FAKE(46, Terminate),      FAKE(49, CreateTensor),
      FAKE(51, GetData),        FAKE(60, GetElement),
      FAKE(61, GetRank),        FAKE(62, GetDims),
      FAKE(65, GetShape),       FAKE(69, CreateCpuMemoryInfo),
      FAKE(85, GetFloat),       FAKE(86, GetInteger),
      FAKE(90, GetInput),       FAKE(91, GetOutput),
      FAKE(92, Free),           FAKE(93, ReleaseStatus),
      FAKE(94, Free),           FAKE(95, ReleaseSession),
      FAKE(96, ReleaseValue),   FAKE(97, Free),
      FAKE(99, ReleaseShape),   FAKE(100, ReleaseOptions),
      FAKE(101, ReleaseDomain), FAKE(130, AddEntry),
      FAKE(193, GetStream),     FAKE(204, AppendCuda),
      FAKE(205, CreateCuda),    FAKE(206, UpdateCuda),
      FAKE(208, ReleaseCuda),
#undef FAKE
  };
  for (const auto& [place, function] : entries) table[place] = function;
  return table;
}

}  // namespace
}  // namespace vkv::onnx

extern "C" __attribute__((visibility("default"))) const void* OrtGetApiBase() {
  static const struct {
    void* const* (*GetApi)(uint32_t version);
    const char* (*GetVersionString)();
  } base = {[](uint32_t) { return vkv::onnx::Table(); }, [] { return "0.0.0"; }};
  return &base;
}
