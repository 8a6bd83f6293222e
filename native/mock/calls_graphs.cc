// MockDevice's entry points for graphs: they record a stream's work and queue it again at every launch. Each launch
// checks the ranges again, since mappings and the lists in memory may have changed since the capture.
#include <cstring>
#include <utility>

#include "mock/mock_call.h"

namespace vkv::mock {
namespace {

uint64_t ToHandle(CUstream stream) { return reinterpret_cast<uint64_t>(stream); }
uint64_t ToHandle(CUgraph graph) { return reinterpret_cast<uint64_t>(graph); }
uint64_t ToHandle(CUgraphExec graph) { return reinterpret_cast<uint64_t>(graph); }

}  // namespace

CUresult MockDevice::cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode /*mode*/) {
  Call call(*this, CallKind::cuStreamBeginCapture, {.stream = ToHandle(stream)});
  if (call.is_refused()) return call.result();
  if (!streams_.IsLiveStream(ToHandle(stream))) return call.Break(rules::kLiveStream, CUDA_ERROR_INVALID_HANDLE);
  if (!streams_.BeginCapture(ToHandle(stream))) {
    return call.Break(rules::kCapturable, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  return call.result();
}

CUresult MockDevice::cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  Call call(*this, CallKind::cuStreamEndCapture, {.stream = ToHandle(stream)});
  if (call.is_refused()) return call.result();
  if (graph == nullptr) return call.Break(rules::kOutput);
  if (!streams_.IsLiveStream(ToHandle(stream)) || !streams_.IsCapturing(ToHandle(stream))) {
    return call.Break(rules::kCaptured, CUDA_ERROR_ILLEGAL_STATE);
  }
  std::vector<Work> works;
  *graph = nullptr;
  if (!streams_.EndCapture(ToHandle(stream), works)) return call.Answer(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  call.arguments().handle = graphs_.Add(std::move(works));
  *graph = reinterpret_cast<CUgraph>(call.arguments().handle);
  return call.result();
}

CUresult MockDevice::cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  Call call(*this, CallKind::cuGraphInstantiateWithFlags, {.handle = ToHandle(graph)});
  if (call.is_refused()) return call.result();
  if (exec == nullptr) return call.Break(rules::kOutput);
  if (flags != 0) return call.Break(rules::kFlags);
  const std::vector<Work>* const works = graphs_.Find(ToHandle(graph));
  if (works == nullptr) return call.Break(rules::kLiveGraph, CUDA_ERROR_INVALID_HANDLE);
  *exec = reinterpret_cast<CUgraphExec>(graphs_.Add(std::vector<Work>(*works)));
  return call.result();
}

CUresult MockDevice::cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  Call call(*this, CallKind::cuGraphLaunch, {.handle = ToHandle(exec), .stream = ToHandle(stream)});
  if (call.is_refused()) return call.result();
  const std::vector<Work>* const works = graphs_.Find(ToHandle(exec));
  if (works == nullptr) return call.Break(rules::kLiveGraph, CUDA_ERROR_INVALID_HANDLE);
  if (!streams_.IsLiveStream(ToHandle(stream))) return call.Break(rules::kLiveStream, CUDA_ERROR_INVALID_HANDLE);
  const uint64_t on = ToHandle(stream);
  for (Work work : *works) {
    work.is_replayed = true;
    work.step = call.step();
    if (work.kernel != nullptr) work.touches = TouchesOf(work, &on);
    if (const CUresult result = Queue(call, on, std::move(work)); result != CUDA_SUCCESS) return result;
  }
  return call.result();
}

CUresult MockDevice::cuGraphExecDestroy(CUgraphExec exec) {
  Call call(*this, CallKind::cuGraphExecDestroy, {.handle = ToHandle(exec)});
  if (call.is_refused()) return call.result();
  return call.EndOf(graphs_.Remove(ToHandle(exec)), rules::kLiveGraph);
}

CUresult MockDevice::cuGraphDestroy(CUgraph graph) {
  Call call(*this, CallKind::cuGraphDestroy, {.handle = ToHandle(graph)});
  if (call.is_refused()) return call.result();
  return call.EndOf(graphs_.Remove(ToHandle(graph)), rules::kLiveGraph);
}

std::vector<Touch> MockDevice::TouchesOf(const Work& work, const uint64_t* behind_stream) const {
  const ListUse use = work.kernel->ListOf(work.parameter.data());
  if (use.bytes == 0) return work.kernel->TouchesOf(work.parameter.data());
  uint64_t address = 0;
  std::memcpy(&address, work.parameter.data() + use.offset, sizeof(address));
  const Touch list = {address, use.bytes, /*is_write=*/false};
  if (!backing_->has_memory() || !addresses_.CanAccess(address, use.bytes, /*is_write=*/false)) return {list};
  std::vector<uint8_t> content(use.bytes);
  std::memcpy(content.data(), reinterpret_cast<const void*>(address), use.bytes);
  if (behind_stream != nullptr) streams_.Preview(*behind_stream, address, content);
  std::vector<uint8_t> parameter = work.parameter;
  const auto place = reinterpret_cast<uint64_t>(content.data());
  std::memcpy(parameter.data() + use.offset, &place, sizeof(place));
  std::vector<Touch> touches = work.kernel->TouchesOf(parameter.data());
  touches.push_back(list);
  return touches;
}

}  // namespace vkv::mock
