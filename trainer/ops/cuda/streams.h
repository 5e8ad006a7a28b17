// The streams and events of a GPU.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <memory>

#include "trainer/tensor/context.h"
#include "trainer/tensor/stream.h"

namespace sortie::trainer::ops::cuda {

/// Makes that GPU the current one for CUDA calls of this thread.
void use_device(Device device);

class CudaStreams final : public Streams {
 public:
  explicit CudaStreams(Device device);
  ~CudaStreams() override;
  CudaStreams(const CudaStreams&) = delete;
  CudaStreams& operator=(const CudaStreams&) = delete;

  Event record(StreamKind stream) override;
  void wait(StreamKind stream, const Event& event) override;
  /// Blocks the caller until `awaited` is complete, because the host does its work.
  void wait(StreamKind stream, std::shared_ptr<Awaited> awaited) override;
  void synchronize() override;

  bool captures() const override { return true; }
  void begin_capture(StreamKind stream) override;
  std::unique_ptr<CapturedWork> end_capture() override;
  void drop_capture() noexcept override;

  cudaStream_t native(StreamKind stream) const {
    return streams_[static_cast<std::size_t>(stream)];
  }

 private:
  const Device device_;
  std::array<cudaStream_t, kStreams> streams_{};
  cudaStream_t captured_ = nullptr;  // the stream that is being captured
};

/// Records an event at the current end of a stream of that GPU.
Event record_event(Device device, cudaStream_t stream);
/// The CUDA event of an event that CudaStreams created; nullptr for an empty one.
cudaEvent_t native_event(const Event& event);

/// The current stream of a GPU's context. Makes its GPU the current one for this thread.
cudaStream_t current_stream(ExecutionContext& context);

}  // namespace sortie::trainer::ops::cuda
