// Construction of execution contexts, and their deferred queues.
#include "trainer/tensor/context.h"

#include <cmath>
#include <cstdlib>
#include <string_view>

#include "trainer/ops/copy.h"
#include "trainer/ops/cpu/cpu_backend.h"
#include "trainer/ops/meta/gpu_meta_backend.h"
#include "trainer/ops/meta/planned_gpu.h"
#include "trainer/tensor/device_module.h"

namespace sortie::trainer {
namespace ops {

std::unique_ptr<Backend> make_backend(Device device, int threads) {
  if (device == kPlannedGpu) return std::make_unique<GpuMetaBackend>(threads);
  if (device.kind == DeviceKind::meta) return std::make_unique<MetaBackend>(threads);
  if (device.kind == DeviceKind::cuda) return cuda_module().backend(device);
  return std::make_unique<CpuBackend>(threads);
}

}  // namespace ops

namespace {

bool wants_garbage() {
  const char* text = std::getenv("SORTIE_DEBUG_MEMORY");
  return text != nullptr && std::string_view(text) == "1";
}

double garbage_of(DType dtype) {
  const bool is_real = dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f64;
  return is_real ? std::nan("") : 255.0;
}

}  // namespace

ExecutionContext::ExecutionContext(int threads, Device device)
    : threads_(threads), allocator_(device), backend_(ops::make_backend(device, threads)) {
  SORTIE_CHECK(threads >= 1, "{} threads", threads);
  if (device.kind == DeviceKind::cuda)
    streams_ = cuda_module().streams(device);
  else if (device.kind != DeviceKind::cpu)
    dispatch_ = Dispatch::guarded;
  if (device.kind == DeviceKind::guarded || (device.kind != DeviceKind::meta && wants_garbage()))
    spoil_ = [this](Tensor& tensor) { ops::fill(*this, garbage_of(tensor.dtype()), tensor); };
}

// Queued work that was not waited for is dropped: what it would access may already be destroyed.
ExecutionContext::~ExecutionContext() = default;

void ExecutionContext::defer(std::uint64_t seed) {
  SORTIE_CHECK(device().kind == DeviceKind::cpu && !streams_, "only a context of the CPU, once");
  auto queues = std::make_unique<WorkQueues>(seed);
  queues_ = queues.get();
  streams_ = std::move(queues);
  dispatch_ = Dispatch::deferred;
  spoil_ = nullptr;  // queued ops allocate memory, too, and a fill would run after them
}

void ExecutionContext::enqueue(std::function<void()> op) {
  queues_->add(stream_, std::move(op));
}

void ExecutionContext::synchronize() {
  if (streams_) streams_->synchronize();
}

// In a deferred context, queued work itself keeps the memory that it uses.
void ExecutionContext::stream_entered(StreamKind before) {
  if (device().kind == DeviceKind::cuda && before != stream_)
    streams_->wait(stream_, streams_->record(before));
}

}  // namespace sortie::trainer
