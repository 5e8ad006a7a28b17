// Fills, copies, and the first values of weights.
#include <cstring>

#include "trainer/ops/cuda/copy.h"
#include "trainer/ops/cuda/cuda_backend.h"
#include "trainer/ops/cuda/elementwise.h"
#include "trainer/ops/cuda/error.h"
#include "trainer/ops/cuda/random.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/ops/cuda/tensor_views.h"
#include "trainer/tensor/device_memory.h"

namespace sortie::trainer::ops::cuda {

void CudaBackend::fill(Context& context, double value, Tensor& x) {
  const cudaStream_t stream = current_stream(context);
  if (value == 0.0) {
    const auto bytes = static_cast<std::size_t>(x.elements()) * dtype_bytes(x.dtype());
    return check(cudaMemsetAsync(x.raw(), 0, bytes, stream), "clearing memory");
  }
  switch (x.dtype()) {
    case DType::f32:
      return fill_values(stream, static_cast<float>(value), flat<float>(x));
    case DType::bf16:
      return fill_values(stream, bf16(static_cast<float>(value)), flat<bf16>(x));
    case DType::f64:
      return fill_values(stream, value, flat<double>(x));
    case DType::i32:
      return fill_values(stream, static_cast<std::int32_t>(value), flat<std::int32_t>(x));
    case DType::i64:
      return fill_values(stream, static_cast<std::int64_t>(value), flat<std::int64_t>(x));
    case DType::u8:
      return fill_values(stream, static_cast<std::uint8_t>(value), flat<std::uint8_t>(x));
  }
}

void CudaBackend::copy_from_host(Context& context, std::span<const std::byte> from, Tensor& to) {
  const cudaStream_t stream = current_stream(context);
  const auto copy = [&](const void* bytes) {
    check(cudaMemcpyAsync(to.raw(), bytes, from.size(), cudaMemcpyHostToDevice, stream),
          "a copy from the host");
  };
  // For memory that is not pinned, the host blocks until the stream gets there and the driver has
  // read it. A batch is small, so it is copied to pinned memory instead.
  constexpr std::size_t kMostPinned = std::size_t{4} << 20;
  if (from.size() > kMostPinned) return copy(from.data());
  while (!uploads_.empty() && uploads_.front().done.poll()) uploads_.pop_front();
  Upload& upload = uploads_.emplace_back();
  upload.block = context.allocator().memory().host_block(from.size());
  std::memcpy(upload.block.get(), from.data(), from.size());
  copy(upload.block.get());
  upload.done = record_event(device_, stream);
}

// Copies after all work that any stream was given, with one wait of the host: a copy to memory that
// is not pinned would wait by itself, so small ones go through pinned memory.
void CudaBackend::copy_to_host(Context& context, const Tensor& from, std::span<std::byte> to) {
  const cudaStream_t stream = current_stream(context);
  for (std::size_t other = 0; other < kStreams; ++other)
    if (const auto kind = static_cast<StreamKind>(other); kind != context.stream())
      context.wait(context.streams()->record(kind));
  constexpr std::size_t kMostPinned = std::size_t{4} << 20;
  std::shared_ptr<std::byte[]> pinned;
  if (to.size() <= kMostPinned) pinned = context.allocator().memory().host_block(to.size());
  check(cudaMemcpyAsync(pinned ? pinned.get() : to.data(), from.raw(), to.size(),
                        cudaMemcpyDeviceToHost, stream),
        "a copy to the host");
  check(cudaStreamSynchronize(stream), "a copy to the host");
  if (pinned) std::memcpy(to.data(), pinned.get(), to.size());
}

void CudaBackend::copy_to_host_late(Context& context, const Tensor& from,
                                    const std::shared_ptr<std::byte[]>& to) {
  const auto bytes = static_cast<std::size_t>(from.elements()) * dtype_bytes(from.dtype());
  check(
      cudaMemcpyAsync(to.get(), from.raw(), bytes, cudaMemcpyDeviceToHost, current_stream(context)),
      "a copy to the host");
}

// On the GPU, with the bits of every other device (random.cu).
void CudaBackend::random_normal(Context& context, std::uint64_t key, std::int64_t first,
                                double std_dev, Tensor& x) {
  normal_values(current_stream(context), key, first, static_cast<float>(std_dev), x.elements(),
                address<float>(x));
}

namespace {

CopyPlan plan_of(const Tensor& from, const Tensor& to) {
  CopyPlan plan{.from = from.raw(), .to = to.raw()};
  const auto bytes = static_cast<std::int64_t>(dtype_bytes(to.dtype()));
  const int dims = to.shape().dims();
  for (int i = 0; i < dims; ++i) {
    const int at = kMaxDims - dims + i;
    plan.sizes[at] = to.size(i);
    if (at == kMaxDims - 1) break;
    plan.from_steps[at] = from.stride(i) * bytes;
    plan.to_steps[at] = to.stride(i) * bytes;
  }
  plan.sizes[kMaxDims - 1] *= bytes;
  return plan;
}

}  // namespace

void CudaBackend::copy(Context& context, const Tensor& from, Tensor& to) {
  copy_strided(current_stream(context), plan_of(from, to));
}

void CudaBackend::copy_to_place(Context& context, const Tensor& from, const Tensor& place,
                                Tensor& to) {
  CopyPlan plan = plan_of(from, to.slice(1, 0, from.size(1)));
  plan.place = address<const std::int32_t>(place);
  plan.place_step = to.stride(1) * static_cast<std::int64_t>(dtype_bytes(to.dtype()));
  copy_strided(current_stream(context), plan);
}

void CudaBackend::concat_columns(Context& context, const Tensor& a, const Tensor& b, Tensor& y) {
  const cudaStream_t stream = current_stream(context);
  copy_strided(stream, plan_of(a, y.slice(1, 0, a.size(1))));
  copy_strided(stream, plan_of(b, y.slice(1, a.size(1), b.size(1))));
}

}  // namespace sortie::trainer::ops::cuda
