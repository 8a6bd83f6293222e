#include "gpu.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/loader.h"

namespace vkv::probe {
namespace {

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char character : text) {
    if (character == '"' || character == '\\') quoted += '\\';
    quoted += character;
  }
  return quoted + '"';
}

std::string NameOf(CUresult result) {
  const char* name = ResultName(result);
  return name != nullptr ? name : "CUresult " + std::to_string(static_cast<int>(result));
}

}  // namespace

Line::Line(const char* question) { Text("question", question); }

Line::~Line() {
  std::printf("{%s}\n", json_.c_str());
  std::fflush(stdout);
}

Line& Line::Raw(const std::string& key, const std::string& json) {
  json_ += (json_.empty() ? "" : ", ") + Quoted(key) + ": " + json;
  return *this;
}

Line& Line::Text(const std::string& key, const std::string& value) { return Raw(key, Quoted(value)); }

Line& Line::Number(const std::string& key, double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.15g", std::round(value * 1000) / 1000);
  return Raw(key, text);
}

Line& Line::Bool(const std::string& key, bool value) { return Raw(key, value ? "true" : "false"); }

Line& Line::Result(const std::string& key, CUresult result) { return Text(key, NameOf(result)); }

Line& Line::Times(const std::string& key, std::vector<double> times_us) {
  std::sort(times_us.begin(), times_us.end());
  const auto at = [&](double part) { return times_us[static_cast<size_t>(part * (times_us.size() - 1))]; };
  if (times_us.empty()) return *this;
  return Number(key + "P50Us", at(0.5)).Number(key + "P99Us", at(0.99)).Number(key + "MaxUs", at(1));
}

double NowUs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

void Must(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  Line("failed").Text("call", call).Result("result", result);
  std::_Exit(1);
}

Gpu::Gpu(const char* library) : library_(library != nullptr ? library : "libcuda.so.1") {
  const Status status = LoadedCuda::Load(library, api_);
  if (!status.ok()) {
    Line("failed").Text("call", status.call).Text("result", "no usable libcuda.so.1");
    std::_Exit(1);
  }
  Must(api_->cuInit(0), "cuInit");
  Must(api_->cuDeviceGet(&device_, 0), "cuDeviceGet");
  page_bytes_ = size_t{2} << 20;  // a context may be needed to ask; MakeCurrent does
}

void Gpu::MakeCurrent() {
  CUcontext context = nullptr;
  Must(api_->cuDevicePrimaryCtxRetain(&context, device_), "cuDevicePrimaryCtxRetain");
  Must(api_->cuCtxPushCurrent(context), "cuCtxPushCurrent");
  const CUmemAllocationProp properties = PageProperties();
  Must(api_->cuMemGetAllocationGranularity(&page_bytes_, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
       "cuMemGetAllocationGranularity");
}

CUmemAllocationProp Gpu::PageProperties() const {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
  return properties;
}

CUmemAccessDesc Gpu::Access(CUmemAccess_flags flags) const { return {{CU_MEM_LOCATION_TYPE_DEVICE, device_}, flags}; }

CUdeviceptr Gpu::Reserve(size_t bytes) const {
  CUdeviceptr address = 0;
  Must(api_->cuMemAddressReserve(&address, bytes, page_bytes_, 0, 0), "cuMemAddressReserve");
  return address;
}

CUmemGenericAllocationHandle Gpu::Create(size_t bytes) const {
  CUmemGenericAllocationHandle page = 0;
  const CUmemAllocationProp properties = PageProperties();
  Must(api_->cuMemCreate(&page, bytes, &properties, 0), "cuMemCreate");
  return page;
}

std::vector<CUmemGenericAllocationHandle> Gpu::MapPages(CUdeviceptr address, int pages) const {
  std::vector<CUmemGenericAllocationHandle> created;
  for (int index = 0; index < pages; ++index) {
    created.push_back(Create(page_bytes_));
    Must(api_->cuMemMap(address + index * page_bytes_, page_bytes_, 0, created.back(), 0), "cuMemMap");
  }
  Must(SetAccess(address, pages * page_bytes_), "cuMemSetAccess");
  return created;
}

CUresult Gpu::SetAccess(CUdeviceptr address, size_t bytes, CUmemAccess_flags flags) const {
  const CUmemAccessDesc access = Access(flags);
  return api_->cuMemSetAccess(address, bytes, &access, 1);
}

void Gpu::Fill(CUdeviceptr address, uint8_t value, size_t bytes) const {
  Must(api_->cuMemsetD8Async(address, value, bytes, nullptr), "cuMemsetD8Async");
  Must(api_->cuStreamSynchronize(nullptr), "cuStreamSynchronize");
}

uint8_t Gpu::ByteAt(CUdeviceptr address) const {
  uint8_t byte = 0;
  Must(api_->cuMemcpyDtoH(&byte, address, 1), "cuMemcpyDtoH");
  return byte;
}

CUstream Gpu::CreateStream() const {
  CUstream stream = nullptr;
  Must(api_->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return stream;
}

}  // namespace vkv::probe
