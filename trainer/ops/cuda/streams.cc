#include "trainer/ops/cuda/streams.h"

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
  // What was not waited for is not wanted, but still uses its memory.
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

cudaEvent_t native_event(const Event& event) {
  if (!event.state()) return nullptr;
  return static_cast<const Point&>(*event.state()).native();
}

cudaStream_t current_stream(ExecutionContext& context) {
  use_device(context.device());
  return static_cast<CudaStreams&>(*context.streams()).native(context.stream());
}

}  // namespace sortie::trainer::ops::cuda
