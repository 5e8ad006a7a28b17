#include "tests/support/cuda/capture.h"

#include <algorithm>
#include <vector>

#include "common/base/check.h"

namespace emulated_cuda {

struct GraphExec {
  std::shared_ptr<const Graph> graph;
  std::shared_ptr<Point> latest;  // next launch waits for it
};

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

/// Captures of this thread in the mode that forbids it calls that may block.
thread_local std::vector<std::shared_ptr<Capture>> captures;

cudaError_t invalidate(Capture& capture, cudaError_t error) {
  if (capture.error == cudaSuccess) capture.error = error;
  return failed(error);
}

/// Adds the nodes that are not in the list yet.
void join(std::vector<std::size_t>& nodes, const std::vector<std::size_t>& others) {
  for (const std::size_t node : others)
    if (std::ranges::find(nodes, node) == nodes.end()) nodes.push_back(node);
}

/// Whether `last` depends, directly or not, on everything that the capture's streams recorded.
bool all_joined(const Capture& capture, const std::vector<std::size_t>& last) {
  const auto& nodes = capture.graph->nodes;
  std::vector<bool> before(nodes.size());
  for (const std::size_t node : last) before[node] = true;
  for (std::size_t n = nodes.size(); n-- > 0;)
    if (before[n])
      for (const std::size_t earlier : nodes[n].after) before[earlier] = true;
  return std::ranges::all_of(before, [](bool b) { return b; });
}

}  // namespace

cudaError_t refuse_in_capture(Capture& capture) {
  return invalidate(capture, cudaErrorStreamCaptureUnsupported);
}

cudaError_t refuse_in_captures() {
  for (const auto& capture : captures) (void)refuse_in_capture(*capture);
  return captures.empty() ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
}

cudaError_t refuse_captured(const Event& event) {
  return invalidate(*event.capture, cudaErrorCapturedEvent);
}

cudaError_t capture_work(Stream& stream, Work work) {
  Capture& capture = *stream.capture;
  if (capture.error != cudaSuccess) return failed(cudaErrorStreamCaptureInvalidated);
  auto& nodes = capture.graph->nodes;
  nodes.push_back({std::move(work), stream.last});
  stream.last = {nodes.size() - 1};
  return cudaSuccess;
}

cudaError_t capture_wait(Stream& stream, const Event& event) {
  if (!event.capture) {
    if (!event.latest) return cudaSuccess;
    return invalidate(*stream.capture, cudaErrorStreamCaptureIsolation);
  }
  Capture& capture = *event.capture;
  if (capture.streams.empty()) return failed(cudaErrorCapturedEvent);  // it has ended
  if (capture.error != cudaSuccess) return failed(cudaErrorStreamCaptureInvalidated);
  if (stream.capture && stream.capture != event.capture) {
    (void)invalidate(*stream.capture, cudaErrorStreamCaptureMerge);
    return invalidate(capture, cudaErrorStreamCaptureMerge);
  }
  SORTIE_CHECK(stream.device == capture.graph->device, "a capture of streams of two GPUs");
  if (!stream.capture) {
    stream.capture = event.capture;
    capture.streams.push_back(&stream);
  }
  join(stream.last, event.nodes);
  return cudaSuccess;
}

}  // namespace emulated_cuda

using namespace emulated_cuda;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  SORTIE_CHECK(mode != cudaStreamCaptureModeGlobal, "captures of one thread are emulated only");
  if (stream->capture) return failed(cudaErrorIllegalState);
  Device& it = device(stream->device);
  Lock lock(it.mutex);
  stream->capture = std::make_shared<Capture>();
  stream->capture->graph->device = stream->device;
  stream->capture->streams = {stream};
  if (mode == cudaStreamCaptureModeThreadLocal) {
    captures.push_back(stream->capture);
    stream->capture->thread = std::this_thread::get_id();
  }
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = !stream->capture                        ? cudaStreamCaptureStatusNone
            : stream->capture->error == cudaSuccess ? cudaStreamCaptureStatusActive
                                                    : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return failed(cudaErrorIllegalState);
  if (capture->streams.front() != stream)
    return invalidate(*capture, cudaErrorStreamCaptureUnmatched);
  if (capture->thread != std::thread::id() && capture->thread != std::this_thread::get_id())
    return failed(cudaErrorStreamCaptureWrongThread);
  Device& it = device(stream->device);
  Lock lock(it.mutex);
  const bool joined = all_joined(*capture, stream->last);
  for (Stream* each : capture->streams) {
    each->capture.reset();
    each->last.clear();
  }
  capture->streams.clear();
  std::erase(captures, capture);
  if (capture->error != cudaSuccess) return failed(cudaErrorStreamCaptureInvalidated);
  if (!joined) return failed(cudaErrorStreamCaptureUnjoined);
  *graph = new std::shared_ptr<const Graph>(capture->graph);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new GraphExec{*graph, {}};
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  SORTIE_CHECK(!stream->capture, "a graph in a graph");
  SORTIE_CHECK(stream->device == exec->graph->device, "a graph of another GPU");
  Device& it = device(stream->device);
  Lock lock(it.mutex);
  const auto passes = std::make_shared<Point>();
  count_launch();
  it.add(
      *stream,
      {.graph = std::make_shared<GraphRun>(exec->graph), .passes = passes, .after = exec->latest});
  exec->latest = passes;
  return cudaSuccess;
}
