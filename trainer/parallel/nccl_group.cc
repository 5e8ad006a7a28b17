#include "trainer/parallel/nccl_group.h"

#include <fmt/core.h>

#include <exception>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "trainer/ops/cuda/error.h"
#include "trainer/ops/cuda/streams.h"
#include "trainer/parallel/nccl.h"

namespace sortie::trainer::nccl {
namespace {

using ops::cuda::check;

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f64:
      return ncclFloat64;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
    case DType::u8:
      return ncclUint8;
  }
  SORTIE_CHECK(false, "a collective of an unknown type");
}

ncclRedOp_t op_of(ReduceOp op) {
  return op == ReduceOp::sum ? ncclSum : ncclMax;
}

std::size_t count_of(const Tensor& tensor) {
  return static_cast<std::size_t>(tensor.elements());
}

}  // namespace

std::string library_text() {
  return "NCCL " + nccl_version();
}

void fail_with(ncclResult_t result, ncclComm_t communicator, const std::string& what) {
  const char* last = ncclGetLastError(communicator);
  const std::string detail = last != nullptr && *last != '\0' ? fmt::format(": {}", last) : "";
  throw CommunicatorError(
      fmt::format("{}: {}: {}{}", library_text(), what, ncclGetErrorString(result), detail));
}

ncclConfig_t config_of(const Handle& handle) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = handle.name.c_str();
  return config;
}

void settle(Handle& handle, ncclResult_t result, const std::string& what,
            const WhileWaiting& waiting) {
  for (int looks = 0; result == ncclInProgress; ++looks) {
    waiting();
    constexpr int kQuickLooks = 200;
    if (looks < kQuickLooks)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    ncclResult_t state = ncclSuccess;
    const std::lock_guard lock(handle.mutex);
    const ncclResult_t asked = ncclCommGetAsyncError(handle.communicator, &state);
    result = asked == ncclSuccess ? state : asked;
  }
  if (result != ncclSuccess) fail_with(result, handle.communicator, what);
}

NcclGroup::NcclGroup(Device device, std::unique_ptr<Handle> handle, int rank, int size)
    : device_(device),
      handle_(std::move(handle)),
      communicator_(handle_->communicator),
      rank_(rank),
      size_(size) {
  ops::cuda::use_device(device_);
  // High priority, before waiting kernels of other streams: other ranks wait for what this one
  // sends.
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities of streams");
  check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "a stream");
}

NcclGroup::~NcclGroup() {
  (void)cudaSetDevice(device_.index);
  const bool sound = !aborted_ && !unsettled_ && std::uncaught_exceptions() == 0;
  if (sound && NcclGroup::idle() && finalize())
    (void)ncclCommDestroy(communicator_);
  else
    abort();
  (void)cudaStreamDestroy(stream_);
}

template <class Call>
void NcclGroup::request(const std::string& what, const WhileWaiting& waiting, const Call& call) {
  ncclResult_t result = ncclSuccess;
  {
    const std::lock_guard lock(handle_->mutex);
    if (aborted_)
      throw CommunicatorError(fmt::format("{}: {}: the group was aborted", library_text(), what));
    unsettled_ = true;
    result = call();
  }
  settle(*handle_, result, what, waiting);
  unsettled_ = false;
}

template <class Call>
Event NcclGroup::add(const Event& ready, const WhileWaiting& waiting, const char* what,
                     const Call& call) {
  ops::cuda::use_device(device_);
  if (ready.state())
    check(cudaStreamWaitEvent(stream_, ops::cuda::native_event(ready), 0), "waiting for an event");
  request(fmt::format("{} of group {}", what, handle_->name), waiting, call);
  return ops::cuda::record_event(device_, stream_);
}

Event NcclGroup::all_reduce(const Tensor& values, ReduceOp op, const Event& ready,
                            const WhileWaiting& waiting) {
  return add(ready, waiting, "all-reduce", [&] {
    return ncclAllReduce(values.raw(), values.raw(), count_of(values), type_of(values.dtype()),
                         op_of(op), communicator_, stream_);
  });
}

Event NcclGroup::reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op,
                                const Event& ready, const WhileWaiting& waiting) {
  return add(ready, waiting, "reduce-scatter", [&] {
    return ncclReduceScatter(input.raw(), output.raw(), count_of(output), type_of(input.dtype()),
                             op_of(op), communicator_, stream_);
  });
}

Event NcclGroup::all_gather(const Tensor& input, const Tensor& output, const Event& ready,
                            const WhileWaiting& waiting) {
  return add(ready, waiting, "all-gather", [&] {
    return ncclAllGather(input.raw(), output.raw(), count_of(input), type_of(input.dtype()),
                         communicator_, stream_);
  });
}

Event NcclGroup::broadcast(const Tensor& values, int root, const Event& ready,
                           const WhileWaiting& waiting) {
  return add(ready, waiting, "broadcast", [&] {
    return ncclBroadcast(values.raw(), values.raw(), count_of(values), type_of(values.dtype()),
                         root, communicator_, stream_);
  });
}

Event NcclGroup::all_to_all(const Tensor& input, std::span<const std::int64_t> send_counts,
                            const Tensor& output, std::span<const std::int64_t> receive_counts,
                            const Event& ready, const WhileWaiting& waiting) {
  const std::size_t width = dtype_bytes(input.dtype());
  const ncclDataType_t type = type_of(input.dtype());
  return add(ready, waiting, "all-to-all", [&] {
    const auto* from = static_cast<const std::byte*>(input.raw());
    auto* to = static_cast<std::byte*>(output.raw());
    cudaError_t copied = cudaSuccess;
    // ncclGroupEnd returns the error of a failed call.
    ncclResult_t begun = ncclGroupStart();
    for (int member = 0; member < size_; ++member) {
      const auto sent = static_cast<std::size_t>(send_counts[static_cast<std::size_t>(member)]);
      const auto got = static_cast<std::size_t>(receive_counts[static_cast<std::size_t>(member)]);
      if (member == rank_) {
        if (sent > 0 && from != to)
          copied = cudaMemcpyAsync(to, from, sent * width, cudaMemcpyDeviceToDevice, stream_);
      } else {
        if (sent > 0) (void)ncclSend(from, sent, type, member, communicator_, stream_);
        if (got > 0) (void)ncclRecv(to, got, type, member, communicator_, stream_);
      }
      from += sent * width;
      to += got * width;
    }
    const ncclResult_t ended = ncclGroupEnd();
    check(copied, "a copy");
    return begun == ncclSuccess ? ended : begun;
  });
}

Event NcclGroup::exchange(std::span<const DeviceMessage> sends,
                          std::span<const DeviceMessage> receives, const Event& ready,
                          const WhileWaiting& waiting) {
  return add(ready, waiting, "exchange", [&] {
    // ncclGroupEnd returns the error of a failed call.
    const ncclResult_t begun = ncclGroupStart();
    for (const auto& [values, to] : sends)
      (void)ncclSend(values.raw(), count_of(values), type_of(values.dtype()), to, communicator_,
                     stream_);
    for (const auto& [values, from] : receives)
      (void)ncclRecv(values.raw(), count_of(values), type_of(values.dtype()), from, communicator_,
                     stream_);
    const ncclResult_t ended = ncclGroupEnd();
    return begun == ncclSuccess ? ended : begun;
  });
}

std::unique_ptr<DeviceGroup> NcclGroup::split(int color, int key, const std::string& name,
                                              const WhileWaiting& waiting) {
  ops::cuda::use_device(device_);
  // In a member until the split is done: if the wait is interrupted, NCCL's thread writes to it
  // until this group is aborted.
  split_ = std::make_unique<Handle>(name);
  ncclConfig_t config = config_of(*split_);
  request(fmt::format("split of group {} into {}", handle_->name, name), waiting, [&] {
    const ncclResult_t begun = ncclCommSplit(communicator_, color < 0 ? NCCL_SPLIT_NOCOLOR : color,
                                             key, &split_->communicator, &config);
    // NCCL returns "success" for a split that has only begun.
    return begun == ncclSuccess ? ncclInProgress : begun;
  });
  auto part = std::move(split_);
  if (color < 0) return nullptr;
  if (part->communicator == nullptr)
    fail_with(ncclInternalError, communicator_, fmt::format("split into {}", name));
  int rank = 0, size = 0;
  (void)ncclCommUserRank(part->communicator, &rank);
  (void)ncclCommCount(part->communicator, &size);
  return std::make_unique<NcclGroup>(device_, std::move(part), rank, size);
}

std::string NcclGroup::problem() {
  const std::unique_lock lock(handle_->mutex, std::try_to_lock);
  if (!lock || aborted_) return {};
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
  if (asked != ncclSuccess) state = asked;
  if (state == ncclSuccess || state == ncclInProgress) return {};
  const char* last = ncclGetLastError(communicator_);
  const std::string detail = last != nullptr && *last != '\0' ? fmt::format(": {}", last) : "";
  return fmt::format("{}: {}{}", library_text(), ncclGetErrorString(state), detail);
}

bool NcclGroup::idle() {
  return cudaStreamQuery(stream_) != cudaErrorNotReady;
}

void NcclGroup::abort() {
  const std::lock_guard lock(handle_->mutex);
  if (std::exchange(aborted_, true)) return;
  (void)cudaSetDevice(device_.index);
  (void)ncclCommAbort(communicator_);
}

bool NcclGroup::finalize() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  const std::lock_guard lock(handle_->mutex);
  ncclResult_t state = ncclCommFinalize(communicator_);
  while (state == ncclInProgress && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (ncclCommGetAsyncError(communicator_, &state) != ncclSuccess) return false;
  }
  return state == ncclSuccess;
}

}  // namespace sortie::trainer::nccl
