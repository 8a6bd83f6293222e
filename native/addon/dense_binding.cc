// NativeDense: the dense arithmetic of a transformer, seen from JavaScript. Converts and forwards; lib/kernels
// validates shapes. A buffer is a typed array, used during the call only, or, as a BigInt, an address.
#include <napi.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "addon/arguments.h"
#include "addon/bindings.h"
#include "addon/context.h"
#include "addon/driver_binding.h"
#include "cuda/driver_cuda.h"
#include "driver.h"
#include "host/host_stream.h"
#include "kernels/dense/cpu/dense_set_cpu.h"
#include "kernels/dense/cuda/dense_set_cuda.h"
#include "kernels/dense/dense_set.h"

namespace vkv::addon {

class NativeDense : public Napi::ObjectWrap<NativeDense> {
 public:
  static void Define(Napi::Env env, Napi::Object exports);

  // (driver, a host driver's only with a stream of it, or undefined for the CPU; {threads, instructions, stream,
  // module, cublas, workspaceBytes})
  explicit NativeDense(const Napi::CallbackInfo& info);
  ~NativeDense() override;

 private:
  Napi::Value Target(const Napi::CallbackInfo& info);
  // (input, rows, inputs, then for each product: weight, dtype, outputs, bias or undefined, output, adds)
  Napi::Value Multiply(const Napi::CallbackInfo& info);
  Napi::Value Normalize(const Napi::CallbackInfo& info);  // (input, rows, weight, width, epsilon, output, adds)
  Napi::Value Rotate(const Napi::CallbackInfo& info);     // (heads of rows, rows, heads, dim, positions, table)
  Napi::Value Gate(const Napi::CallbackInfo& info);       // (gate, up, count, output, activation)
  Napi::Value Cap(const Napi::CallbackInfo& info);        // (values, count, cap)
  Napi::Value Gather(const Napi::CallbackInfo& info);     // (table, dtype, width, tokens, rows, output, factor)
  Napi::Value Close(const Napi::CallbackInfo& info);

  Status OpenSet(Napi::Env env, Arguments& options);
  void CloseSet();
  bool is_on_device() const { return driver_ != nullptr && !stream_; }
  // Runs `call(set, entries)`, with the device current where there is one, or queues it on the host driver's stream, if
  // its arguments could be read; throws the error of a failure, kClosed included. `call` is plain data.
  template <typename Entry, typename Call>
  Napi::Value Run(Napi::Env env, const Arguments& given, std::span<const Entry> entries, Call call);

  std::shared_ptr<Driver> driver_;            // null: the CPU, without a stream
  std::shared_ptr<HostStream> stream_;        // of a host driver, else null
  std::unique_ptr<kernels::DenseSet> dense_;  // null once closed; queued commands use it
  std::vector<kernels::Product> products_;
};

namespace {

constexpr size_t kCommonArguments = 3;
constexpr size_t kProductArguments = 6;

constexpr std::span<const int32_t> kNoEntries;

constexpr int64_t kMostElements = int64_t{1} << 48;  // their bytes are no overflow

// `off`, `auto`, or a path.
kernels::CublasChoice ToChoice(Arguments& options) {
  using Kind = kernels::CublasChoice::Kind;
  const std::string given = options.String("cublas");
  return {given == "off"    ? Kind::kNone
          : given == "auto" ? Kind::kUsual
                            : Kind::kPath,
          given, static_cast<uint64_t>(options.Integer("workspaceBytes", 0, kLargestInteger))};
}

// Of a weight in rows of `width` elements; int8 on the CPU only, in rows of whole blocks.
kernels::Dtype ToDtype(Arguments& given, size_t at, int64_t width, bool is_on_device) {
  const kernels::Dtype dtype{static_cast<int32_t>(given.Integer(at, 0, 3))};
  if (dtype == kernels::kInt8Weights && (is_on_device || width % kernels::kBlockElements != 0)) given.Refuse(width);
  return dtype;
}

int64_t ToCount(Arguments& given, size_t at) { return given.Integer(at, 0, kMostElements); }

// Elements of [rows, width]; refuses numbers that would overflow.
int64_t Product(Arguments& given, int64_t rows, int64_t width) {
  if (width > 0 && rows > kMostElements / width) given.Refuse(rows);
  return given.ok() ? rows * width : 0;
}

struct Indices {
  std::span<const int32_t> numbers;
  int64_t most = -1;           // the largest; -1 where they are not known
  bool are_on_device = false;  // read when the kernel runs, and so not checked here
};

// The first `count` numbers of an Int32Array, none below zero, or the address of `count` numbers on a device.
Indices ReadIndices(Arguments& given, size_t at, int64_t count, bool has_device) {
  Indices indices;
  if (has_device && given.IsAddress(at)) {
    const auto* const address = reinterpret_cast<const int32_t*>(given.Address(at));
    if (given.ok()) indices = {{address, static_cast<size_t>(count)}, -1, true};
    return indices;
  }
  const std::span<const int32_t> numbers = given.Int32s(at);
  if (static_cast<int64_t>(numbers.size()) < count) given.Refuse(static_cast<int64_t>(numbers.size()));
  if (given.ok()) indices.numbers = numbers.first(static_cast<size_t>(count));
  for (const int32_t number : indices.numbers) {
    if (number < 0) given.Refuse(number);
    indices.most = std::max<int64_t>(indices.most, number);
  }
  return indices;
}

template <typename T>
T* Floats(Arguments& given, size_t at, int64_t count) {
  return given.Buffer<T>(at, napi_float32_array, static_cast<uint64_t>(count) * sizeof(float));
}

const void* Matrix(Arguments& given, size_t at, kernels::Dtype dtype, int64_t count) {
  const napi_typedarray_type type = dtype == kernels::Dtype::kFloat32 ? napi_float32_array
                                    : dtype == kernels::kInt8Weights  ? napi_uint8_array
                                                                      : napi_uint16_array;
  return given.Buffer<const void>(at, type, static_cast<uint64_t>(kernels::WeightBytes(dtype, count)));
}

}  // namespace

void NativeDense::Define(Napi::Env env, Napi::Object exports) {
  exports.Set(
      "NativeDense",
      DefineClass(env, "NativeDense",
                  {InstanceMethod<&NativeDense::Target>("target"), InstanceMethod<&NativeDense::Multiply>("multiply"),
                   InstanceMethod<&NativeDense::Normalize>("normalize"), InstanceMethod<&NativeDense::Rotate>("rotate"),
                   InstanceMethod<&NativeDense::Gate>("gate"), InstanceMethod<&NativeDense::Cap>("cap"),
                   InstanceMethod<&NativeDense::Gather>("gather"), InstanceMethod<&NativeDense::Close>("close")}));
}

NativeDense::NativeDense(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeDense>(info) {
  Arguments options(info, 1, "NativeDense");
  if (info[0].IsObject()) driver_ = NativeDriver::Of(info[0]);
  if (info[0].IsObject() && !driver_) options.Refuse();
  ThrowIfFailed(info.Env(), OpenSet(info.Env(), options), KindOf(driver_));
}

NativeDense::~NativeDense() { CloseSet(); }

Status NativeDense::OpenSet(Napi::Env env, Arguments& options) {
  if (!driver_ || driver_->AsHost() != nullptr) {
    const std::string instructions = options.String("instructions");
    const auto threads = static_cast<int32_t>(options.Integer("threads", 1, 1024));
    stream_ = HostStreamOf(driver_, options);
    if (driver_ && !stream_) options.Refuse();
    VKV_RETURN_IF_ERROR(options.status());
    dense_ = std::make_unique<kernels::CpuDense>(ContextOf(env).WorkersOf(stream_), threads,
                                                 kernels::ChooseDense(instructions.c_str()));
    return Ok();
  }
  const kernels::CublasChoice choice = ToChoice(options);
  const uint64_t stream = options.Address("stream");
  const std::string module = options.String("module");
  cuda::DriverCuda* const cuda = driver_->AsCuda();
  if (cuda == nullptr) options.Refuse();
  VKV_RETURN_IF_ERROR(options.status());
  DriverScope scope(*driver_);
  VKV_RETURN_IF_ERROR(scope.status());
  return kernels::CudaDense::Open(*cuda, module, stream, choice, dense_);
}

void NativeDense::CloseSet() {
  if (stream_ && dense_) stream_->WaitForAll();
  if (!is_on_device() || !dense_) return dense_.reset();
  DriverScope scope(*driver_);  // where it fails, nothing is left to give back
  dense_.reset();
}

template <typename Entry, typename Call>
Napi::Value NativeDense::Run(Napi::Env env, const Arguments& given, std::span<const Entry> entries, Call call) {
  if (!dense_) {
    ThrowIfFailed(env, Fail(Code::kClosed, "dense kernels"));
  } else if (!given.ok()) {
    ThrowIfFailed(env, given.status());
  } else if (stream_) {
    stream_->Queue(HostStream::Kind::kDroppable, entries,
                   [set = dense_.get(), call](std::span<const Entry> queued) { return call(*set, queued); });
  } else if (!driver_) {
    ThrowIfFailed(env, call(*dense_, entries));
  } else {
    DriverScope scope(*driver_);
    ThrowIfFailed(env, scope.status().ok() ? call(*dense_, entries) : scope.status(), KindOf(driver_));
  }
  return env.Undefined();
}

Napi::Value NativeDense::Target(const Napi::CallbackInfo& info) {
  return Napi::String::New(info.Env(), dense_ ? dense_->name() : "");
}

Napi::Value NativeDense::Multiply(const Napi::CallbackInfo& info) {
  Arguments given(info, "multiply");
  const int64_t rows = ToCount(given, 1), inputs = ToCount(given, 2);
  const kernels::ProductInput input = {Floats<const float>(given, 0, Product(given, rows, inputs)), rows, inputs};
  products_.clear();
  for (size_t at = kCommonArguments; at + kProductArguments <= info.Length(); at += kProductArguments) {
    const kernels::Dtype dtype = ToDtype(given, at + 1, inputs, is_on_device());
    const int64_t outputs = ToCount(given, at + 2);
    const float* const bias = given.IsUndefined(at + 3) ? nullptr : Floats<const float>(given, at + 3, outputs);
    products_.push_back({Matrix(given, at, dtype, Product(given, outputs, inputs)), bias,
                         Floats<float>(given, at + 4, Product(given, rows, outputs)), outputs, dtype,
                         given.Boolean(at + 5)});
  }
  return Run(info.Env(), given, std::span<const kernels::Product>(products_),
             [input](kernels::DenseSet& dense, auto products) { return dense.Multiply(input, products); });
}

Napi::Value NativeDense::Normalize(const Napi::CallbackInfo& info) {
  Arguments given(info, "normalize");
  const int64_t rows = ToCount(given, 1), width = ToCount(given, 3);
  const int64_t count = Product(given, rows, width);
  const kernels::Normalization command = {Floats<const float>(given, 0, count), Floats<const float>(given, 2, width),
                                          Floats<float>(given, 5, count),       width,
                                          static_cast<float>(given.Double(4)),  given.Boolean(6)};
  return Run(info.Env(), given, kNoEntries,
             [command, rows](kernels::DenseSet& dense, auto) { return dense.Normalize(command, rows); });
}

Napi::Value NativeDense::Rotate(const Napi::CallbackInfo& info) {
  Arguments given(info, "rotate");
  const int64_t rows = ToCount(given, 1), heads = ToCount(given, 2), dim = ToCount(given, 3);
  float* const floats = Floats<float>(given, 0, Product(given, rows, Product(given, heads, dim)));
  const Indices positions = ReadIndices(given, 4, rows, is_on_device());
  const auto* const table = Floats<const float>(given, 5, Product(given, positions.most + 1, dim));
  const bool are_neighbours = given.Boolean(6);
  if (are_neighbours && (is_on_device() || dim > kernels::kMostNeighbourDim)) given.Refuse(dim);
  const kernels::Rotation command = {floats, positions.numbers.data(), table, heads, dim, positions.are_on_device};
  return Run(info.Env(), given, positions.numbers,
             [command, rows, are_neighbours](kernels::DenseSet& dense, auto numbers) {
               kernels::Rotation rotation = command;
               rotation.positions = numbers.data();  // where it was queued, a copy
               return are_neighbours ? dense.RotateNeighbours(rotation, rows) : dense.Rotate(rotation, rows);
             });
}

Napi::Value NativeDense::Gate(const Napi::CallbackInfo& info) {
  Arguments given(info, "gate");
  const int64_t count = ToCount(given, 2);
  const kernels::Gating command = {Floats<const float>(given, 0, count), Floats<const float>(given, 1, count),
                                   Floats<float>(given, 3, count), count,
                                   kernels::Activation{static_cast<int32_t>(given.Integer(4, 0, 1))}};
  return Run(info.Env(), given, kNoEntries, [command](kernels::DenseSet& dense, auto) { return dense.Gate(command); });
}

Napi::Value NativeDense::Cap(const Napi::CallbackInfo& info) {
  Arguments given(info, "cap");
  const int64_t count = ToCount(given, 1);
  const kernels::Capping command = {Floats<float>(given, 0, count), count, static_cast<float>(given.Double(2))};
  return Run(info.Env(), given, kNoEntries, [command](kernels::DenseSet& dense, auto) { return dense.Cap(command); });
}

Napi::Value NativeDense::Gather(const Napi::CallbackInfo& info) {
  Arguments given(info, "gather");
  const int64_t width = ToCount(given, 2), rows = ToCount(given, 4);
  const kernels::Dtype dtype = ToDtype(given, 1, width, is_on_device());
  const Indices tokens = ReadIndices(given, 3, rows, is_on_device());
  const kernels::Gathering command = {Matrix(given, 0, dtype, Product(given, tokens.most + 1, width)),
                                      Floats<float>(given, 5, Product(given, rows, width)),
                                      width,
                                      dtype,
                                      tokens.are_on_device,
                                      static_cast<float>(given.Double(6))};
  return Run(info.Env(), given, tokens.numbers,
             [command](kernels::DenseSet& dense, auto numbers) { return dense.Gather(command, numbers); });
}

Napi::Value NativeDense::Close(const Napi::CallbackInfo& info) {
  CloseSet();
  driver_.reset();
  return info.Env().Undefined();
}

void DefineDense(Napi::Env env, Napi::Object exports) { NativeDense::Define(env, exports); }

}  // namespace vkv::addon
