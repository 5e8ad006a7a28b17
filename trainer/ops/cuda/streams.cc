#include "trainer/ops/cuda/streams.h"

#include <utility>

#include "common/base/check.h"
#include "trainer/ops/cuda/error.h"

namespace sortie::trainer::ops::cuda {
namespace {

/// A point in a stream of a GPU.
class Point final : public Event::State {
 public:
  explicit Point(Device device) : device_(device) {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "an event");
  }
  ~Point() override { (void)cudaEventDestroy(event_); }
  Point(const Point&) = delete;
  Point& operator=(const Point&) = delete;

  bool poll() override {
    use_device(device_);
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return false;
    check(state, "what came before an event");
    return true;
  }
  void wait() override {
    use_device(device_);
    check(cudaEventSynchronize(event_), "what came before an event");
  }
  cudaEvent_t native() const { return event_; }

 private:
  const Device device_;
  cudaEvent_t event_ = nullptr;
};

struct GraphOwner {
  cudaGraph_t graph;
  ~GraphOwner() { (void)cudaGraphDestroy(graph); }
};

/// A CUDA graph, ready to be launched.
class CapturedGraph final : public CapturedWork {
 public:
  CapturedGraph(Device device, cudaStream_t stream, cudaGraph_t graph)
      : device_(device), stream_(stream) {
    check(cudaGraphInstantiate(&exec_, graph, 0), "making a CUDA graph");
  }
  ~CapturedGraph() override {
    (void)cudaSetDevice(device_.index);
    (void)cudaStreamSynchronize(stream_);  // it may still run
    (void)cudaGraphExecDestroy(exec_);
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  void launch() override {
    use_device(device_);
    check(cudaGraphLaunch(exec_, stream_), "a CUDA graph");
  }

 private:
  const Device device_;
  const cudaStream_t stream_;
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace

void use_device(Device device) {
  check(cudaSetDevice(device.index), "choosing a GPU");
}

CudaStreams::CudaStreams(Device device) : device_(device) {
  use_device(device);
  for (cudaStream_t& stream : streams_)
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
}

CudaStreams::~CudaStreams() {
  (void)cudaSetDevice(device_.index);
  // Work that was not waited for is not needed, but still uses its memory.
  for (cudaStream_t stream : streams_) {
    (void)cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
  }
}

Event record_event(Device device, cudaStream_t stream) {
  use_device(device);
  auto point = std::make_shared<Point>(device);
  check(cudaEventRecord(point->native(), stream), "an event");
  return Event(std::move(point));
}

Event CudaStreams::record(StreamKind stream) {
  return record_event(device_, native(stream));
}

void CudaStreams::wait(StreamKind stream, const Event& event) {
  if (!event.state()) return;
  use_device(device_);
  check(cudaStreamWaitEvent(native(stream), native_event(event), 0), "waiting for an event");
}

void CudaStreams::wait(StreamKind, std::shared_ptr<Awaited> awaited) {
  awaited->wait();
}

void CudaStreams::synchronize() {
  use_device(device_);
  for (cudaStream_t stream : streams_) check(cudaStreamSynchronize(stream), "work of a stream");
}

// Other threads may wait and allocate memory meanwhile, because they do not use these streams.
void CudaStreams::begin_capture(StreamKind stream) {
  SORTIE_CHECK(captured_ == nullptr, "a capture in a capture");
  use_device(device_);
  check(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal),
        "the start of a CUDA graph");
  captured_ = native(stream);
}

std::unique_ptr<CapturedWork> CudaStreams::end_capture() {
  SORTIE_CHECK(captured_ != nullptr, "the end of no capture");
  use_device(device_);
  const cudaStream_t stream = std::exchange(captured_, nullptr);
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "capturing a CUDA graph");
  const GraphOwner owner{graph};
  return std::make_unique<CapturedGraph>(device_, stream, graph);
}

void CudaStreams::drop_capture() noexcept {
  if (captured_ == nullptr) return;
  (void)cudaSetDevice(device_.index);
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(std::exchange(captured_, nullptr), &graph);
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  (void)cudaGetLastError();  // so that later calls do not report the error
}

cudaEvent_t native_event(const Event& event) {
  if (!event.state()) return nullptr;
  return static_cast<const Point&>(*event.state()).native();
}

cudaStream_t current_stream(ExecutionContext& context) {
  use_device(context.device());
  return static_cast<CudaStreams&>(*context.streams()).native(context.stream());
}

}  // namespace sortie::trainer::ops::cuda
