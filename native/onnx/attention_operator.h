// AttentionOperator: `virtualkv.Attention`, the node that stands in a graph where attention with a past stood. It
// writes the new tokens' K and V into a cache's memory and attends over it: with kernels/cpu, on onnxruntime's own
// threads; or, as a node of its CUDA provider, with kernels/cuda, queued on the provider's stream.
//
// Where the memory lies and which sequences a pass has is not in the graph: Pass says so, for the one run at a time of
// the session that the operator belongs to. Rows of a pass are the tokens of [1, tokens], one sequence after the other.
//
// Inputs: q [1, rows, query heads · dim], k [1, rows, KV heads · dim], v [1, rows, KV heads · value dim], cosines and
// sines [positions, half of the rotated dims], sinks [query heads], which are float. All but q may be missing: packed,
// q holds q, k and v of each row. Output [1, rows, query heads · value dim]. Of q, k, v and the output, heads may be a
// dimension of their own: [1, rows, heads, dim]. All but sinks is float, or all float16. Attributes: layer, num_heads,
// kv_num_heads, packed, rotary (0: none, 1: halves, 2: neighbours), scale (0: 1/√dim), window, softcap. On a device
// nothing is packed or turned: the graph does that by other nodes.
#ifndef VKV_ONNX_ATTENTION_OPERATOR_H_
#define VKV_ONNX_ATTENTION_OPERATOR_H_

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "driver.h"
#include "kernels/cpu/kernel_set_cpu.h"
#include "onnx/ort_api.h"

namespace vkv::onnx {

struct LayerTensors {
  kernels::Tensor keys;
  kernels::Tensor values;
};

// What one run computes. The binding has checked that every span is inside the cache, and that rows follow each other.
struct Pass {
  std::vector<LayerTensors> layers;
  std::vector<kernels::Span> spans;
  int64_t rows = 0;
  kernels::Dtype cache_dtype = kernels::Dtype::kFloat32;
};

// Where a session computes: on the CPU, or on the device of a CUDA driver, which has loaded the kernels as `module`.
struct Place {
  std::shared_ptr<Driver> driver;  // null: the CPU
  std::string module;
};

// The loop of the kernels on onnxruntime's threads, while a node runs.
class OrtLoop final : public kernels::ParallelLoop {
 public:
  explicit OrtLoop(const OrtApi& api) : api_(api) {}

  void Run(int64_t tasks, int threads, Task task, void* context) override;
  void set_context(const OrtKernelContext* context) { context_ = context; }

 private:
  const OrtApi& api_;
  const OrtKernelContext* context_ = nullptr;
};

class AttentionOperator {
 public:
  // `threads`: of the session's loops, on the CPU.
  AttentionOperator(std::shared_ptr<const OrtApi> api, int threads, Place place);
  // On a device: once the session is released, so that nothing is queued any more.
  ~AttentionOperator();

  // Adds it to a domain, which must not outlive it.
  OrtStatus* AddTo(OrtCustomOpDomain* domain);

  // From the thread that runs the session, while nothing runs.
  void Begin(const Pass* pass);

 private:
  struct Op : CustomOp {
    AttentionOperator* owner;
    Element element;
  };
  struct Kernel {
    AttentionOperator* owner = nullptr;
    Element element = Element::kFloat;
    int64_t layer = 0, heads = 0, kv_heads = 0, packed = 0, rotary = 0, window = 0;
    float scale = 0, softcap = 0;
  };
  struct Input {
    const void* data = nullptr;  // null: there is none
    std::vector<int64_t> dims;
  };

  void Fill(Op& op, Element element);
  OrtStatus* Create(Element element, const OrtKernelInfo* info, void** kernel) const;
  OrtStatus* Compute(const Kernel& kernel, OrtKernelContext* context);
  OrtStatus* Read(OrtKernelContext* context, size_t at, Input& input) const;
  // The same over the cache's memory, as far as CPU and device differ in the kernels alone.
  Status Attend(kernels::KernelSet& set, const kernels::AppendCommand& append,
                const kernels::AttentionCommand& attention);
  OrtStatus* AttendOnDevice(OrtKernelContext* context, const kernels::AppendCommand& append,
                            const kernels::AttentionCommand& attention);
  OrtStatus* Refuse(const char* what) const { return api_->CreateStatus(OrtCode::kInvalidArgument, what); }
  // Rows of `heads` heads as floats in `to`, turned by their positions where there are cosines.
  void Convert(const Input& from, Element element, int64_t from_row, int64_t offset, int64_t heads, int64_t dim,
               const Input& cosines, const Input& sines, bool are_neighbours, std::vector<float>& to);

  const std::shared_ptr<const OrtApi> api_;
  const int threads_;
  const kernels::SimdKernels* const simd_;
  const std::shared_ptr<OrtLoop> loop_;
  kernels::CpuKernels kernels_;
  const Place place_;
  // Of the device, by the provider's streams: each has a workspace of its own.
  std::map<Stream, std::unique_ptr<kernels::KernelSet>> on_streams_;
  Op float_op_{}, half_op_{};

  // Of the pass under way.
  const Pass* pass_ = nullptr;
  std::vector<kernels::Span> decoding_, prefilling_;
  std::vector<int32_t> positions_;  // [row]
  int32_t reach_ = 0;               // above all positions
  // Scratch of a node, kept for the next.
  std::vector<float> queries_, keys_, values_, output_;
};

}  // namespace vkv::onnx

#endif  // VKV_ONNX_ATTENTION_OPERATOR_H_
