// OrtApi: the C API of onnxruntime, as far as it is used here, from a library that the user has installed.
//
// onnxruntime's table of functions is append-only: a function is declared by its place, which holds for every version
// since the one that brought it. So there is no header of onnxruntime's, and one binary for all versions since
// kVersion. Opaque types are incomplete. The library stays loaded: onnxruntime does not bear being unloaded. Threads:
// any.
#ifndef VKV_ONNX_ORT_API_H_
#define VKV_ONNX_ORT_API_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "status.h"

namespace vkv::onnx {

struct OrtStatus;
struct OrtEnv;
struct OrtSession;
struct OrtSessionOptions;
struct OrtRunOptions;
struct OrtValue;
struct OrtMemoryInfo;
struct OrtAllocator;
struct OrtTensorShape;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtCudaOptions;

// The API's version that is asked for: onnxruntime 1.17 has it, and every later one.
inline constexpr uint32_t kVersion = 17;

// Types of elements, by onnxruntime's numbers, which are those of ONNX.
enum class Element : int32_t { kFloat = 1, kUint8 = 2, kInt32 = 6, kInt64 = 7, kBool = 9, kFloat16 = 10 };
int64_t BytesOf(Element element);  // 0: one that is not read or written here

enum class OrtCode : int32_t { kFail = 1, kInvalidArgument = 2 };

class OrtApi {
 public:
  // Loads the library, or finds it loaded. kOnnxUnavailable when it cannot be, or is too old or no onnxruntime; `text`
  // says why.
  static Status Load(const std::string& path, std::shared_ptr<const OrtApi>& api, std::string& text);

  const char* version() const { return version_; }

  // name, place in the table, parameters. Those that return nothing release something and take null.
#define VKV_ORT_FUNCTIONS(F)                                                                                          \
  F(CreateStatus, 0, OrtStatus*, (OrtCode code, const char* message), (code, message))                                \
  F(GetErrorCode, 1, int32_t, (const OrtStatus* status), (status))                                                    \
  F(GetErrorMessage, 2, const char*, (const OrtStatus* status), (status))                                             \
  F(CreateEnv, 3, OrtStatus*, (int32_t least_severity, const char* name, OrtEnv** env), (least_severity, name, env))  \
  F(CreateSessionFromArray, 8, OrtStatus*,                                                                            \
    (const OrtEnv* env, const void* model, size_t bytes, const OrtSessionOptions* options, OrtSession** session),     \
    (env, model, bytes, options, session))                                                                            \
  F(Run, 9, OrtStatus*,                                                                                               \
    (OrtSession * session, const OrtRunOptions* options, const char* const* input_names,                              \
     const OrtValue* const* inputs, size_t input_count, const char* const* output_names, size_t output_count,         \
     OrtValue** outputs),                                                                                             \
    (session, options, input_names, inputs, input_count, output_names, output_count, outputs))                        \
  F(CreateSessionOptions, 10, OrtStatus*, (OrtSessionOptions * *options), (options))                                  \
  F(SetIntraOpNumThreads, 24, OrtStatus*, (OrtSessionOptions * options, int32_t threads), (options, threads))         \
  F(CreateCustomOpDomain, 26, OrtStatus*, (const char* name, OrtCustomOpDomain** domain), (name, domain))             \
  F(CustomOpDomainAdd, 27, OrtStatus*, (OrtCustomOpDomain * domain, const struct CustomOp* op), (domain, op))         \
  F(AddCustomOpDomain, 28, OrtStatus*, (OrtSessionOptions * options, OrtCustomOpDomain * domain), (options, domain))  \
  F(CreateRunOptions, 39, OrtStatus*, (OrtRunOptions * *options), (options))                                          \
  F(RunOptionsSetTerminate, 46, OrtStatus*, (OrtRunOptions * options), (options))                                     \
  F(CreateTensorWithData, 49, OrtStatus*,                                                                             \
    (const OrtMemoryInfo* memory, void* data, size_t bytes, const int64_t* dims, size_t rank, Element element,        \
     OrtValue** value),                                                                                               \
    (memory, data, bytes, dims, rank, element, value))                                                                \
  F(GetTensorMutableData, 51, OrtStatus*, (OrtValue * value, void** data), (value, data))                             \
  F(GetTensorElementType, 60, OrtStatus*, (const OrtTensorShape* shape, Element* element), (shape, element))          \
  F(GetDimensionsCount, 61, OrtStatus*, (const OrtTensorShape* shape, size_t* rank), (shape, rank))                   \
  F(GetDimensions, 62, OrtStatus*, (const OrtTensorShape* shape, int64_t* dims, size_t rank), (shape, dims, rank))    \
  F(GetTensorTypeAndShape, 65, OrtStatus*, (const OrtValue* value, OrtTensorShape** shape), (value, shape))           \
  F(CreateCpuMemoryInfo, 69, OrtStatus*, (int32_t allocator, int32_t type, OrtMemoryInfo * *memory),                  \
    (allocator, type, memory))                                                                                        \
  F(KernelInfoGetFloat, 85, OrtStatus*, (const OrtKernelInfo* info, const char* name, float* value),                  \
    (info, name, value))                                                                                              \
  F(KernelInfoGetInt, 86, OrtStatus*, (const OrtKernelInfo* info, const char* name, int64_t* value),                  \
    (info, name, value))                                                                                              \
  F(KernelContextGetInput, 90, OrtStatus*, (const OrtKernelContext* context, size_t at, const OrtValue** value),      \
    (context, at, value))                                                                                             \
  F(KernelContextGetOutput, 91, OrtStatus*,                                                                           \
    (OrtKernelContext * context, size_t at, const int64_t* dims, size_t rank, OrtValue** value),                      \
    (context, at, dims, rank, value))                                                                                 \
  F(ReleaseEnv, 92, void, (OrtEnv * env), (env))                                                                      \
  F(ReleaseStatus, 93, void, (OrtStatus * status), (status))                                                          \
  F(ReleaseMemoryInfo, 94, void, (OrtMemoryInfo * memory), (memory))                                                  \
  F(ReleaseSession, 95, void, (OrtSession * session), (session))                                                      \
  F(ReleaseValue, 96, void, (OrtValue * value), (value))                                                              \
  F(ReleaseRunOptions, 97, void, (OrtRunOptions * options), (options))                                                \
  F(ReleaseTensorShape, 99, void, (OrtTensorShape * shape), (shape))                                                  \
  F(ReleaseSessionOptions, 100, void, (OrtSessionOptions * options), (options))                                       \
  F(ReleaseCustomOpDomain, 101, void, (OrtCustomOpDomain * domain), (domain))                                         \
  F(AddSessionConfigEntry, 130, OrtStatus*, (OrtSessionOptions * options, const char* key, const char* value),        \
    (options, key, value))                                                                                            \
  F(KernelContextGetGpuComputeStream, 193, OrtStatus*, (const OrtKernelContext* context, void** stream),              \
    (context, stream))                                                                                                \
  F(AppendCuda, 204, OrtStatus*, (OrtSessionOptions * options, const OrtCudaOptions* cuda), (options, cuda))          \
  F(CreateCudaOptions, 205, OrtStatus*, (OrtCudaOptions * *cuda), (cuda))                                             \
  F(UpdateCudaOptions, 206, OrtStatus*,                                                                               \
    (OrtCudaOptions * cuda, const char* const* keys, const char* const* values, size_t count),                        \
    (cuda, keys, values, count))                                                                                      \
  F(ReleaseCudaOptions, 208, void, (OrtCudaOptions * cuda), (cuda))                                                   \
  F(KernelContextParallelFor, 274, OrtStatus*,                                                                        \
    (const OrtKernelContext* context, void (*task)(void* user, size_t at), size_t total, size_t batches, void* user), \
    (context, task, total, batches, user))
#define VKV_ORT_DEFINE(name, place, result, parameters, arguments) \
  result name parameters const { return reinterpret_cast<result(*) parameters>(table_[place]) arguments; }
  VKV_ORT_FUNCTIONS(VKV_ORT_DEFINE)
#undef VKV_ORT_DEFINE

 private:
  void* const* table_ = nullptr;
  const char* version_ = "";
};

// What a session is told about one operator: the head of onnxruntime's OrtCustomOp, whose members are read up to those
// of `version`.
struct CustomOp {
  uint32_t version;
  void* (*CreateKernel)(const CustomOp* op, const void* api, const OrtKernelInfo* info);  // where there is no V2
  const char* (*GetName)(const CustomOp* op);
  const char* (*GetProvider)(const CustomOp* op);  // null: the CPU
  Element (*GetInputType)(const CustomOp* op, size_t at);
  size_t (*GetInputCount)(const CustomOp* op);
  Element (*GetOutputType)(const CustomOp* op, size_t at);
  size_t (*GetOutputCount)(const CustomOp* op);
  void (*Compute)(void* kernel, OrtKernelContext* context);  // where there is no V2
  void (*Destroy)(void* kernel);
  int32_t (*GetInputCharacteristic)(const CustomOp* op, size_t at);  // 0: required, 1: optional
  int32_t (*GetOutputCharacteristic)(const CustomOp* op, size_t at);
  int32_t (*GetInputMemoryType)(const CustomOp* op, size_t at);
  int32_t (*GetVariadicInputMinArity)(const CustomOp* op);
  int32_t (*GetVariadicInputHomogeneity)(const CustomOp* op);
  int32_t (*GetVariadicOutputMinArity)(const CustomOp* op);
  int32_t (*GetVariadicOutputHomogeneity)(const CustomOp* op);
  OrtStatus* (*CreateKernelV2)(const CustomOp* op, const void* api, const OrtKernelInfo* info, void** kernel);
  OrtStatus* (*ComputeV2)(void* kernel, OrtKernelContext* context);
};
inline constexpr uint32_t kCustomOpVersion = 16;  // the first with the two V2

}  // namespace vkv::onnx

#endif  // VKV_ONNX_ORT_API_H_
