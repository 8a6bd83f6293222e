// DriverCuda's calls for graphs: captures a stream's work and launches it again as a whole.
#include "cuda/driver_cuda.h"

namespace vkv::cuda {
namespace {

CUstream ToStream(Stream stream) { return reinterpret_cast<CUstream>(stream); }

}  // namespace

Status DriverCuda::BeginCapture(Stream stream) {
  VKV_RETURN_IF_ERROR(Ready());
  return Check("cuStreamBeginCapture",
               api_->cuStreamBeginCapture(ToStream(stream), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
}

Status DriverCuda::EndCapture(Stream stream, CUgraphExec& graph) {
  VKV_RETURN_IF_ERROR(Ready());
  CUgraph captured = nullptr;
  const CUresult ended = api_->cuStreamEndCapture(ToStream(stream), &captured);
  if (ended != CUDA_SUCCESS) {
    // An invalidated capture is over; after any other refusal the stream may still record.
    if (ended != CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) AbortCapture(stream);
    return Check("cuStreamEndCapture", ended);
  }
  const Status status =
      Check("cuGraphInstantiateWithFlags", api_->cuGraphInstantiateWithFlags(&graph, captured, /*flags=*/0));
  if (!is_lost()) (void)api_->cuGraphDestroy(captured);
  return status;
}

void DriverCuda::AbortCapture(Stream stream) {
  if (!Ready().ok()) return;
  CUgraph captured = nullptr;
  const CUresult result = api_->cuStreamEndCapture(ToStream(stream), &captured);  // fails where the capture had failed
  if (result == CUDA_SUCCESS && captured != nullptr) (void)api_->cuGraphDestroy(captured);
}

Status DriverCuda::LaunchGraph(CUgraphExec graph, Stream stream) {
  VKV_RETURN_IF_ERROR(Ready());
  const CUresult result = api_->cuGraphLaunch(graph, ToStream(stream));
  NoteQueued(stream);
  return Check("cuGraphLaunch", result);
}

Status DriverCuda::DestroyGraph(CUgraphExec graph) {
  VKV_RETURN_IF_ERROR(Ready());
  return CheckGivenBack("cuGraphExecDestroy", api_->cuGraphExecDestroy(graph), {});
}

}  // namespace vkv::cuda
