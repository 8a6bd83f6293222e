// Shared by the probe's questions: the device, ranges of pages, work that keeps it busy, times, and the
// lines of output.
//
// Each question runs in a process of its own, because some of them may end the device for the process; so
// nothing here is given back, and a call that must succeed ends the process with a line that says which one
// did not.
#ifndef VKV_SCRIPTS_GPU_GPU_H_
#define VKV_SCRIPTS_GPU_GPU_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/cuda_api.h"

namespace vkv::probe {

using namespace vkv::cuda;

// One line of output: a JSON object, printed when it goes.
class Line {
 public:
  explicit Line(const char* question);
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  Line& Text(const std::string& key, const std::string& value);
  Line& Number(const std::string& key, double value);
  Line& Bool(const std::string& key, bool value);
  // A CUresult by its name.
  Line& Result(const std::string& key, CUresult result);
  // Median, 99th percentile and largest of times in µs, as keyP50Us, keyP99Us and keyMaxUs.
  Line& Times(const std::string& key, std::vector<double> times_us);

 private:
  Line& Raw(const std::string& key, const std::string& json);
  std::string json_;
};

double NowUs();
// How long `call` takes, in µs.
template <typename Call>
double TimeUs(Call call) {
  const double begin = NowUs();
  call();
  return NowUs() - begin;
}

// Ends the process with a line unless `result` is success.
void Must(CUresult result, const char* call);

class Gpu {
 public:
  // Loads the driver; makes no context.
  explicit Gpu(const char* library);
  // Retains the primary context and makes it current on this thread.
  void MakeCurrent();

  CudaApi& api() const { return *api_; }
  const char* library() const { return library_.c_str(); }  // its name or path
  CUdevice device() const { return device_; }
  size_t page_bytes() const { return page_bytes_; }

  CUmemAllocationProp PageProperties() const;
  CUmemAccessDesc Access(CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) const;

  CUdeviceptr Reserve(size_t bytes) const;
  CUmemGenericAllocationHandle Create(size_t bytes) const;
  // Creates `pages` pages side by side at `address`, with access.
  std::vector<CUmemGenericAllocationHandle> MapPages(CUdeviceptr address, int pages) const;
  CUresult SetAccess(CUdeviceptr address, size_t bytes,
                     CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) const;
  void Fill(CUdeviceptr address, uint8_t value, size_t bytes) const;
  uint8_t ByteAt(CUdeviceptr address) const;
  CUstream CreateStream() const;
  bool IsBusy(CUstream stream) const { return api_->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY; }

 private:
  std::string library_;
  std::shared_ptr<CudaApi> api_;
  CUdevice device_ = 0;
  size_t page_bytes_ = 0;
};

// Kernels, compiled by the driver. Without them (the simulated device has none) the questions that need one
// are skipped.
class Kernels {
 public:
  explicit Kernels(const Gpu& gpu);
  CUresult result() const { return result_; }
  bool are_there() const { return result_ == CUDA_SUCCESS; }

  // Runs for `ms`.
  void Spin(CUstream stream, double ms) const;
  // Reads `bytes` at `address` over and over for `ms`; adds to the 8 bytes at `wrong` whenever eight bytes
  // are not `expected`.
  void Watch(CUstream stream, CUdeviceptr address, size_t bytes, double ms, uint64_t expected, CUdeviceptr wrong) const;
  // Waits until the 8 bytes at `flag` are not zero (or `ms` pass: then it writes 0), then copies those at
  // `data` to `out`.
  void Await(CUstream stream, CUdeviceptr flag, CUdeviceptr data, double ms, CUdeviceptr out) const;

 private:
  void Launch(const char* name, CUstream stream, unsigned blocks, void** parameters) const;
  const Gpu& gpu_;
  CUmodule module_ = nullptr;
  CUresult result_;
};

// Keeps `stream` busy for about `ms`: a kernel, or where there is none a chain of fills.
class Work {
 public:
  explicit Work(const Gpu& gpu);
  const char* kind() const { return kernels_.are_there() ? "kernel" : "chain of fills"; }
  void Start(CUstream stream, double ms);
  const Kernels& kernels() const { return kernels_; }

 private:
  const Gpu& gpu_;
  Kernels kernels_;
  CUdeviceptr scratch_ = 0;
  size_t scratch_bytes_ = 0;
};

int ImportPage(Gpu& gpu, int descriptor);  // transfer_questions.cc

using Question = void (*)(Gpu& gpu, const char* name);
struct NamedQuestion {
  const char* name;
  bool needs_context;
  Question ask;
};
extern const std::vector<NamedQuestion> kMappingQuestions;     // mapping_questions.cc
extern const std::vector<NamedQuestion> kRunningQuestions;     // running_questions.cc
extern const std::vector<NamedQuestion> kContentionQuestions;  // contention_questions.cc
extern const std::vector<NamedQuestion> kTransferQuestions;    // transfer_questions.cc
extern const std::vector<NamedQuestion> kBlockTableQuestions;  // block_table_question.cc

}  // namespace vkv::probe

#endif  // VKV_SCRIPTS_GPU_GPU_H_
