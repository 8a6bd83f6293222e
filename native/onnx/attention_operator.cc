#include "onnx/attention_operator.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cuda/driver_cuda.h"
#include "kernels/cuda/kernel_set_cuda.h"
#include "kernels/float16.h"

namespace vkv::onnx {
namespace {

using kernels::Dtype;
using kernels::Half;

// Places of the inputs.
enum : size_t { kQueries, kKeys, kValues, kCosines, kSines, kSinks, kInputs };

constexpr int64_t kRowsPerTask = 16;
constexpr uint64_t kWorkspaceBytes = uint64_t{32} << 20;  // as lib/kernels/kernels-options.ts's default

float At(const void* data, Element element, int64_t at) {
  return element == Element::kFloat ? static_cast<const float*>(data)[at]
                                    : kernels::ToFloat(static_cast<const Half*>(data)[at]);
}

// Turns a head's first 2 · `half` elements.
void Rotate(float* head, const float* cosines, const float* sines, int64_t half, bool are_neighbours) {
  const int64_t step = are_neighbours ? 2 : 1, other = are_neighbours ? 1 : half;
  for (int64_t i = 0; i < half; ++i) {
    float& first = head[i * step];
    float& second = head[i * step + other];
    const float before = first;
    first = before * cosines[i] - second * sines[i];
    second = second * cosines[i] + before * sines[i];
  }
}

}  // namespace

void OrtLoop::Run(int64_t tasks, int threads, Task task, void* context) {
  struct Loop {
    std::atomic<int64_t> next{0};
    int64_t tasks;
    Task task;
    void* context;
  } loop{.tasks = tasks, .task = task, .context = context};
  const auto take = [](void* user, size_t worker) {
    auto& own = *static_cast<Loop*>(user);
    for (int64_t at = own.next++; at < own.tasks; at = own.next++) own.task(own.context, at, static_cast<int>(worker));
  };
  threads = static_cast<int>(std::min<int64_t>(threads, tasks));
  if (threads > 1) {
    api_.ReleaseStatus(api_.KernelContextParallelFor(context_, take, static_cast<size_t>(threads), 0, &loop));
  }
  take(&loop, 0);  // all of it where there is no other thread, or onnxruntime refused
}

AttentionOperator::AttentionOperator(std::shared_ptr<const OrtApi> api, int threads, Place place)
    : api_(std::move(api)),
      threads_(threads),
      simd_(kernels::ChooseSimd()),
      loop_(std::make_shared<OrtLoop>(*api_)),
      kernels_(loop_, threads, simd_),
      place_(std::move(place)) {
  Fill(float_op_, Element::kFloat);
  Fill(half_op_, Element::kFloat16);
}

AttentionOperator::~AttentionOperator() {
  if (!place_.driver) return;
  DriverScope scope(*place_.driver);  // where it fails, nothing is left to give back
  on_streams_.clear();
}

void AttentionOperator::Fill(Op& op, Element element) {
  op.owner = this;
  op.element = element;
  op.version = kCustomOpVersion;
  op.GetName = [](const CustomOp* own) {
    return static_cast<const Op*>(own)->element == Element::kFloat ? "Attention" : "AttentionFloat16";
  };
  op.GetProvider = [](const CustomOp* own) -> const char* {
    return static_cast<const Op*>(own)->owner->place_.driver ? "CUDAExecutionProvider" : nullptr;
  };
  op.GetInputType = [](const CustomOp* own, size_t at) {
    return at == kSinks ? Element::kFloat : static_cast<const Op*>(own)->element;
  };
  op.GetInputCount = [](const CustomOp*) -> size_t { return kInputs; };
  op.GetOutputType = [](const CustomOp* own, size_t) { return static_cast<const Op*>(own)->element; };
  op.GetOutputCount = [](const CustomOp*) -> size_t { return 1; };
  op.Destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  op.GetInputCharacteristic = [](const CustomOp*, size_t at) { return at == kQueries ? 0 : 1; };
  op.GetOutputCharacteristic = [](const CustomOp*, size_t) { return 0; };
  op.GetInputMemoryType = [](const CustomOp*, size_t) { return 0; };  // the provider's own
  op.CreateKernelV2 = [](const CustomOp* own, const void*, const OrtKernelInfo* info, void** kernel) {
    const Op& self = *static_cast<const Op*>(own);
    return self.owner->Create(self.element, info, kernel);
  };
  op.ComputeV2 = [](void* kernel, OrtKernelContext* context) {
    const Kernel& self = *static_cast<const Kernel*>(kernel);
    return self.owner->Compute(self, context);
  };
}

OrtStatus* AttentionOperator::AddTo(OrtCustomOpDomain* domain) {
  OrtStatus* const status = api_->CustomOpDomainAdd(domain, &float_op_);
  return status != nullptr ? status : api_->CustomOpDomainAdd(domain, &half_op_);
}

OrtStatus* AttentionOperator::Create(Element element, const OrtKernelInfo* info, void** kernel) const {
  auto made = std::make_unique<Kernel>();
  made->owner = const_cast<AttentionOperator*>(this);
  made->element = element;
  const struct {
    const char* name;
    int64_t* value;
  } integers[] = {{"layer", &made->layer},   {"num_heads", &made->heads}, {"kv_num_heads", &made->kv_heads},
                  {"packed", &made->packed}, {"rotary", &made->rotary},   {"window", &made->window}};
  for (const auto& [name, value] : integers) {
    if (OrtStatus* const status = api_->KernelInfoGetInt(info, name, value)) return status;
  }
  if (OrtStatus* const status = api_->KernelInfoGetFloat(info, "scale", &made->scale)) return status;
  if (OrtStatus* const status = api_->KernelInfoGetFloat(info, "softcap", &made->softcap)) return status;
  const bool is_sound = made->layer >= 0 && made->kv_heads > 0 && made->heads > 0 && made->heads < INT32_MAX &&
                        made->heads % made->kv_heads == 0 && made->window >= 0 && made->window < INT32_MAX;
  if (!is_sound) return Refuse("virtualkv.Attention: its attributes are out of range");
  if (place_.driver && (made->packed != 0 || made->rotary != 0)) {
    return Refuse("virtualkv.Attention: its graph was written for the CPU");
  }
  *kernel = made.release();
  return nullptr;
}

void AttentionOperator::Begin(const Pass* pass) {
  pass_ = pass;
  decoding_.clear();
  prefilling_.clear();
  positions_.clear();
  reach_ = 0;
  if (pass == nullptr) return;
  for (const kernels::Span& span : pass->spans) {
    (span.tokens == 1 ? decoding_ : prefilling_).push_back(span);
    for (int32_t token = 0; token < span.tokens; ++token) positions_.push_back(span.length + token);
    reach_ = std::max(reach_, span.length + span.tokens);
  }
}

OrtStatus* AttentionOperator::Read(OrtKernelContext* context, size_t at, Input& input) const {
  const OrtValue* value = nullptr;
  if (OrtStatus* const status = api_->KernelContextGetInput(context, at, &value)) return status;
  if (value == nullptr) return nullptr;
  void* data = nullptr;
  if (OrtStatus* const status = api_->GetTensorMutableData(const_cast<OrtValue*>(value), &data)) return status;
  OrtTensorShape* shape = nullptr;
  if (OrtStatus* const status = api_->GetTensorTypeAndShape(value, &shape)) return status;
  size_t rank = 0;
  OrtStatus* status = api_->GetDimensionsCount(shape, &rank);
  if (status == nullptr) {
    input.dims.resize(rank);
    status = api_->GetDimensions(shape, input.dims.data(), rank);
  }
  api_->ReleaseTensorShape(shape);
  input.data = data;
  return status;
}

void AttentionOperator::Convert(const Input& from, Element element, int64_t from_row, int64_t offset, int64_t heads,
                                int64_t dim, const Input& cosines, const Input& sines, bool are_neighbours,
                                std::vector<float>& to) {
  const int64_t rows = pass_->rows, width = heads * dim;
  const Dtype dtype = element == Element::kFloat ? Dtype::kFloat32 : Dtype::kFloat16;
  const int64_t half = cosines.data == nullptr ? 0 : cosines.dims[1];
  to.resize(static_cast<size_t>(rows * width));
  const auto* const bytes = static_cast<const uint8_t*>(from.data);
  const int threads = rows < 2 * kRowsPerTask ? 1 : threads_;
  loop_->ForEach((rows + kRowsPerTask - 1) / kRowsPerTask, threads, [&](int64_t task, int) {
    std::vector<float> turns(static_cast<size_t>(2 * half));
    for (int64_t row = task * kRowsPerTask; row < std::min(rows, (task + 1) * kRowsPerTask); ++row) {
      float* const own = to.data() + row * width;
      simd_->convert(own, Dtype::kFloat32, bytes + (row * from_row + offset) * BytesOf(element), dtype, width);
      if (half == 0) continue;
      const int64_t first = positions_[static_cast<size_t>(row)] * half;
      for (int64_t i = 0; i < half; ++i) {
        turns[static_cast<size_t>(i)] = At(cosines.data, element, first + i);
        turns[static_cast<size_t>(half + i)] = At(sines.data, element, first + i);
      }
      for (int64_t head = 0; head < heads; ++head) {
        Rotate(own + head * dim, turns.data(), turns.data() + half, half, are_neighbours);
      }
    }
  });
}

OrtStatus* AttentionOperator::Compute(const Kernel& kernel, OrtKernelContext* context) {
  Input inputs[kInputs];
  for (size_t at = 0; at < kInputs; ++at) {
    if (OrtStatus* const status = Read(context, at, inputs[at])) return status;
  }
  auto& [queries, keys, values, cosines, sines, sinks] = inputs;
  if (pass_ == nullptr) return Refuse("virtualkv.Attention: it runs in passes of a cache only");
  if (kernel.layer >= static_cast<int64_t>(pass_->layers.size())) {
    return Refuse("virtualkv.Attention: the cache has fewer layers than the graph");
  }
  const LayerTensors& layer = pass_->layers[static_cast<size_t>(kernel.layer)];
  const int64_t rows = pass_->rows, dim = layer.keys.dim, value_dim = layer.values.dim;
  const int64_t query_width = kernel.heads * dim, key_width = kernel.kv_heads * dim;
  const int64_t value_width = kernel.kv_heads * value_dim;
  const auto is_rows = [&](const Input& input, int64_t width) {
    if (input.data == nullptr || input.dims.size() < 3 || input.dims.size() > 4) return false;
    return input.dims[0] * input.dims[1] == rows &&
           input.dims[2] * (input.dims.size() == 4 ? input.dims[3] : 1) == width;
  };
  const bool is_packed = kernel.packed != 0;
  const int64_t packed_width = query_width + key_width + value_width;
  const bool fits = layer.keys.heads == kernel.kv_heads && layer.values.heads == kernel.kv_heads &&
                    is_rows(queries, is_packed ? packed_width : query_width) &&
                    (is_packed || (is_rows(keys, key_width) && is_rows(values, value_width)));
  if (!fits) return Refuse("virtualkv.Attention: queries, keys or values are not of the cache's shape");
  if (kernel.rotary != 0) {
    const bool is_table = cosines.data != nullptr && sines.data != nullptr && cosines.dims.size() == 2 &&
                          cosines.dims == sines.dims && 2 * cosines.dims[1] <= dim;
    if (!is_table) return Refuse("virtualkv.Attention: cosines and sines are not of the heads' shape");
    if (reach_ > cosines.dims[0]) return Refuse("virtualkv.Attention: a position is beyond the table of cosines");
  } else {
    cosines = sines = {};
  }
  int64_t sink_count = 1;
  for (const int64_t length : sinks.dims) sink_count *= length;
  if (sinks.data != nullptr && sink_count != kernel.heads) {
    return Refuse("virtualkv.Attention: there is not one sink for each head");
  }

  std::vector<int64_t> output_dims{queries.dims[0], queries.dims[1], kernel.heads * value_dim};
  if (queries.dims.size() == 4) output_dims = {queries.dims[0], queries.dims[1], kernel.heads, value_dim};
  OrtValue* output = nullptr;
  if (OrtStatus* const status =
          api_->KernelContextGetOutput(context, 0, output_dims.data(), output_dims.size(), &output)) {
    return status;
  }
  void* output_data = nullptr;
  if (OrtStatus* const status = api_->GetTensorMutableData(output, &output_data)) return status;

  // Rows that lie as the kernels read them are used where they are.
  loop_->set_context(context);
  const Element element = kernel.element;
  const bool is_on_device = place_.driver != nullptr;
  const bool is_direct = is_on_device || element == Element::kFloat;
  const bool turns = kernel.rotary != 0, are_neighbours = kernel.rotary == 2;
  const auto prepared = [&](const Input& from, int64_t offset, int64_t heads, int64_t head_dim, bool is_turned,
                            std::vector<float>& room) {
    if (is_direct && !is_packed && !is_turned) return reinterpret_cast<uint64_t>(from.data);
    const Input none;
    Convert(from, element, is_packed ? packed_width : heads * head_dim, offset, heads, head_dim,
            is_turned ? cosines : none, is_turned ? sines : none, are_neighbours, room);
    return reinterpret_cast<uint64_t>(room.data());
  };
  const uint64_t query_rows = prepared(queries, 0, kernel.heads, dim, turns, queries_);
  const uint64_t key_rows =
      prepared(is_packed ? queries : keys, is_packed ? query_width : 0, kernel.kv_heads, dim, turns, keys_);
  const uint64_t value_rows = prepared(is_packed ? queries : values, is_packed ? query_width + key_width : 0,
                                       kernel.kv_heads, value_dim, false, values_);
  if (!is_direct) output_.resize(static_cast<size_t>(rows * kernel.heads * value_dim));

  const Dtype row_dtype = is_on_device && element == Element::kFloat16 ? Dtype::kFloat16 : Dtype::kFloat32;
  const kernels::AppendCommand append{layer.keys, layer.values, key_rows, value_rows, pass_->cache_dtype, row_dtype};
  const kernels::AttentionCommand attention{
      .keys = layer.keys,
      .values = layer.values,
      .queries = query_rows,
      .output = reinterpret_cast<uint64_t>(is_direct ? output_data : output_.data()),
      .sinks = reinterpret_cast<uint64_t>(sinks.data),
      .cache_dtype = pass_->cache_dtype,
      .row_dtype = row_dtype,
      .query_heads = static_cast<int32_t>(kernel.heads),
      .scale = kernel.scale == 0 ? 1 / std::sqrt(static_cast<float>(dim)) : kernel.scale,
      .window = static_cast<int32_t>(kernel.window),
      .softcap = kernel.softcap};
  if (is_on_device) return AttendOnDevice(context, append, attention);
  const Status status = Attend(kernels_, append, attention);
  if (!is_direct) {
    simd_->convert(output_data, Dtype::kFloat16, output_.data(), Dtype::kFloat32, rows * kernel.heads * value_dim);
  }
  loop_->set_context(nullptr);
  return status.ok() ? nullptr : api_->CreateStatus(OrtCode::kFail, status.call);
}

Status AttentionOperator::Attend(kernels::KernelSet& set, const kernels::AppendCommand& append,
                                 const kernels::AttentionCommand& attention) {
  VKV_RETURN_IF_ERROR(set.Append(append, pass_->spans));
  if (!prefilling_.empty()) VKV_RETURN_IF_ERROR(set.PrefillAttention(attention, prefilling_));
  if (!decoding_.empty()) VKV_RETURN_IF_ERROR(set.DecodeAttention(attention, decoding_));
  return Ok();
}

OrtStatus* AttentionOperator::AttendOnDevice(OrtKernelContext* context, const kernels::AppendCommand& append,
                                             const kernels::AttentionCommand& attention) {
  void* provided = nullptr;
  if (OrtStatus* const status = api_->KernelContextGetGpuComputeStream(context, &provided)) return status;
  const auto stream = reinterpret_cast<Stream>(provided);
  DriverScope scope(*place_.driver);
  Status status = scope.status();
  std::unique_ptr<kernels::KernelSet>& set = on_streams_[stream];
  if (status.ok() && set == nullptr) {
    status = kernels::CudaKernels::Open(*place_.driver->AsCuda(), place_.module, stream, kWorkspaceBytes, set);
  }
  if (status.ok()) status = Attend(*set, append, attention);
  if (status.ok()) return nullptr;
  const std::string text = std::string("virtualkv.Attention: ") + status.call + " " + status.result_name;
  return api_->CreateStatus(OrtCode::kFail, text.c_str());
}

}  // namespace vkv::onnx
