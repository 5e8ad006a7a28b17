// Groups on NCCL. Every group has a communicator and a stream of its own, so that a small
// collective that computation waits for does not stand behind a large one that it does not.
// Communicators are not blocking: a call may go on in NCCL's threads, and is waited for here before
// anything else is asked of the communicator, so that nothing can wait without an end.
#include "trainer/parallel/nccl.h"

#include <fmt/core.h>
#include <nccl.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "trainer/ops/cuda/error.h"
#include "trainer/ops/cuda/streams.h"

namespace sortie::trainer {
namespace {

using ops::cuda::check;

/// What decides in which order sums are taken, or is read along with it.
constexpr std::array kSettings = {"NCCL_ALGO",           "NCCL_PROTO",    "NCCL_NVLS_ENABLE",
                                  "NCCL_COLLNET_ENABLE", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS",
                                  "NCCL_BUFFSIZE",       "NCCL_NTHREADS", "NCCL_MIN_NCHANNELS",
                                  "NCCL_MAX_NCHANNELS"};

std::string library_text() {
  int version = 0;  // 22809 = 2.28.9
  (void)ncclGetVersion(&version);
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

[[noreturn]] void fail_with(ncclResult_t result, ncclComm_t communicator, const std::string& what) {
  const char* last = ncclGetLastError(communicator);
  const std::string detail = last != nullptr && *last != '\0' ? fmt::format(": {}", last) : "";
  throw CommunicatorError(
      fmt::format("{}: {}: {}{}", library_text(), what, ncclGetErrorString(result), detail));
}

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

/// Waits until what NCCL does in its own threads is done.
void settle(ncclResult_t result, ncclComm_t communicator, const std::string& what,
            const WhileWaiting& waiting) {
  int looks = 0;
  while (result == ncclInProgress) {
    if (waiting) waiting();
    constexpr int kQuickLooks = 200;
    if (++looks < kQuickLooks)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(communicator, &state);
    result = asked == ncclSuccess ? state : asked;
  }
  if (result != ncclSuccess) fail_with(result, communicator, what);
}

ncclConfig_t config_of(const std::string& name) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.commName = name.c_str();
  return config;
}

class NcclGroup final : public DeviceGroup {
 public:
  NcclGroup(Device device, ncclComm_t communicator, int rank, int size, std::string name,
            WhileWaiting waiting)
      : device_(device),
        communicator_(communicator),
        rank_(rank),
        size_(size),
        name_(std::move(name)),
        waiting_(std::move(waiting)) {
    ops::cuda::use_device(device_);
    // Before kernels of other streams that wait for a place: others wait for what this one sends.
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities of streams");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "a stream");
  }

  ~NcclGroup() override {
    (void)cudaSetDevice(device_.index);
    const bool sound = !aborted_ && std::uncaught_exceptions() == 0;
    if (sound && cudaStreamSynchronize(stream_) == cudaSuccess && finalize()) {
      (void)ncclCommDestroy(communicator_);
    } else {
      NcclGroup::abort();
    }
    (void)cudaStreamDestroy(stream_);
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  Event all_reduce(const Tensor& values, ReduceOp op, const Event& ready) override {
    return add(ready, "all-reduce", [&] {
      return ncclAllReduce(values.raw(), values.raw(), count_of(values), type_of(values.dtype()),
                           op_of(op), communicator_, stream_);
    });
  }
  Event reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op,
                       const Event& ready) override {
    return add(ready, "reduce-scatter", [&] {
      return ncclReduceScatter(input.raw(), output.raw(), count_of(output), type_of(input.dtype()),
                               op_of(op), communicator_, stream_);
    });
  }
  Event all_gather(const Tensor& input, const Tensor& output, const Event& ready) override {
    return add(ready, "all-gather", [&] {
      return ncclAllGather(input.raw(), output.raw(), count_of(input), type_of(input.dtype()),
                           communicator_, stream_);
    });
  }
  Event broadcast(const Tensor& values, int root, const Event& ready) override {
    return add(ready, "broadcast", [&] {
      return ncclBroadcast(values.raw(), values.raw(), count_of(values), type_of(values.dtype()),
                           root, communicator_, stream_);
    });
  }
  Event all_to_all(const Tensor& input, std::span<const std::int64_t> send_counts,
                   const Tensor& output, std::span<const std::int64_t> receive_counts,
                   const Event& ready) override {
    const std::size_t width = dtype_bytes(input.dtype());
    const ncclDataType_t type = type_of(input.dtype());
    return add(ready, "all-to-all", [&] {
      const auto* from = static_cast<const std::byte*>(input.raw());
      auto* to = static_cast<std::byte*>(output.raw());
      // A failed call is what the end of its group returns.
      ncclResult_t begun = ncclGroupStart();
      for (int member = 0; member < size_; ++member) {
        const auto sent = static_cast<std::size_t>(send_counts[static_cast<std::size_t>(member)]);
        const auto got = static_cast<std::size_t>(receive_counts[static_cast<std::size_t>(member)]);
        if (member == rank_) {
          if (sent > 0 && from != to)
            check(cudaMemcpyAsync(to, from, sent * width, cudaMemcpyDeviceToDevice, stream_),
                  "a copy");
        } else {
          if (sent > 0) (void)ncclSend(from, sent, type, member, communicator_, stream_);
          if (got > 0) (void)ncclRecv(to, got, type, member, communicator_, stream_);
        }
        from += sent * width;
        to += got * width;
      }
      const ncclResult_t ended = ncclGroupEnd();
      return begun == ncclSuccess ? ended : begun;
    });
  }
  Event send(const Tensor& values, int to, const Event& ready) override {
    return add(ready, "send", [&] {
      return ncclSend(values.raw(), count_of(values), type_of(values.dtype()), to, communicator_,
                      stream_);
    });
  }
  Event receive(const Tensor& values, int from, const Event& ready) override {
    return add(ready, "receive", [&] {
      return ncclRecv(values.raw(), count_of(values), type_of(values.dtype()), from, communicator_,
                      stream_);
    });
  }

  std::unique_ptr<DeviceGroup> split(int color, int key, const std::string& name,
                                     const WhileWaiting& waiting) override {
    ops::cuda::use_device(device_);
    ncclConfig_t config = config_of(name);
    ncclComm_t part = nullptr;
    const ncclResult_t begun =
        ncclCommSplit(communicator_, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &part, &config);
    settle(begun, communicator_, fmt::format("split of group {} into {}", name_, name), waiting);
    if (color < 0 || part == nullptr) return nullptr;
    settle(ncclInProgress, part, fmt::format("connecting group {}", name), waiting);
    int rank = 0, size = 0;
    (void)ncclCommUserRank(part, &rank);
    (void)ncclCommCount(part, &size);
    return std::make_unique<NcclGroup>(device_, part, rank, size, name, waiting_);
  }

  std::string problem() override {
    const std::lock_guard lock(mutex_);
    if (aborted_) return {};
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
    if (asked != ncclSuccess) state = asked;
    if (state == ncclSuccess || state == ncclInProgress) return {};
    const char* last = ncclGetLastError(communicator_);
    const std::string detail = last != nullptr && *last != '\0' ? fmt::format(": {}", last) : "";
    return fmt::format("{}: {}{}", library_text(), ncclGetErrorString(state), detail);
  }

  void abort() override {
    const std::lock_guard lock(mutex_);
    if (std::exchange(aborted_, true)) return;
    (void)cudaSetDevice(device_.index);
    (void)ncclCommAbort(communicator_);
  }

 private:
  /// Adds what `call` asks NCCL for to the stream, behind `ready`.
  template <class Call>
  Event add(const Event& ready, const char* what, const Call& call) {
    ops::cuda::use_device(device_);
    if (ready.state())
      check(cudaStreamWaitEvent(stream_, ops::cuda::native_event(ready), 0),
            "waiting for an event");
    settle(call(), communicator_, fmt::format("{} of group {}", what, name_), waiting_);
    return ops::cuda::record_event(device_, stream_);
  }

  /// Whether all members have come to the end of the group, or at least this one could.
  bool finalize() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    ncclResult_t state = ncclCommFinalize(communicator_);
    while (state == ncclInProgress && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      if (ncclCommGetAsyncError(communicator_, &state) != ncclSuccess) return false;
    }
    return state == ncclSuccess;
  }

  const Device device_;
  const ncclComm_t communicator_;
  const int rank_, size_;
  const std::string name_;
  const WhileWaiting waiting_;
  cudaStream_t stream_ = nullptr;
  std::mutex mutex_;  // of the end: who watches the group is another thread
  bool aborted_ = false;
};

class NcclGroups final : public DeviceGroups {
 public:
  std::string library() const override { return library_text(); }

  std::string settings() const override {
    const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
    std::string text;
    for (const char* name : kSettings)
      if (const char* value = std::getenv(name)) text += fmt::format("{}={}\n", name, value);
    // Sums in the switch come in another order from call to call (NVIDIA/nccl issue 1497).
    if (!is_set("NCCL_ALGO") && !is_set("NCCL_NVLS_ENABLE")) text += "NCCL_NVLS_ENABLE=0\n";
    return text;
  }

  void adopt_settings(const std::string& settings) override {
    for (const char* name : kSettings) {
      const std::string start = std::string(name) + "=";
      std::size_t at = settings.starts_with(start) ? 0 : settings.find("\n" + start);
      if (at == std::string::npos) {
        ::unsetenv(name);
        continue;
      }
      at += start.size() + (at > 0 ? 1 : 0);
      ::setenv(name, settings.substr(at, settings.find('\n', at) - at).c_str(), 1);
    }
  }

  std::string new_id() override {
    ncclUniqueId id;
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) fail_with(result, nullptr, "an id for a group");
    return std::string(id.internal, sizeof id.internal);
  }

  std::unique_ptr<DeviceGroup> join(Device device, const std::string& id, int rank, int size,
                                    const std::string& name, const WhileWaiting& waiting) override {
    ops::cuda::use_device(device);
    ncclUniqueId unique;
    if (id.size() != sizeof unique.internal)
      throw CommunicatorError(fmt::format("{}: an id of {} bytes for group {}, {} are expected",
                                          library_text(), id.size(), name, sizeof unique.internal));
    std::memcpy(unique.internal, id.data(), id.size());
    ncclConfig_t config = config_of(name);
    ncclComm_t communicator = nullptr;
    const ncclResult_t begun = ncclCommInitRankConfig(&communicator, size, unique, rank, &config);
    settle(begun, communicator, fmt::format("connecting group {}", name), waiting);
    return std::make_unique<NcclGroup>(device, communicator, rank, size, name, waiting);
  }
};

}  // namespace

DeviceGroups& nccl_groups() {
  static auto* groups = new NcclGroups;  // for as long as the process
  return *groups;
}

}  // namespace sortie::trainer
