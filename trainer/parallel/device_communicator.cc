#include "trainer/parallel/device_communicator.h"

#include <fmt/core.h>

#include <exception>
#include <numeric>
#include <thread>

#include "trainer/parallel/device_watch.h"
#include "trainer/parallel/group_communicator.h"
#include "trainer/parallel/reduce_kernel.h"

namespace sortie::trainer {
namespace {

using Clock = std::chrono::steady_clock;

/// What all groups of a rank share.
struct DeviceRank {
  DeviceRank(DeviceGroups& made_by, Device gpu)
      : groups(made_by), device(gpu), watch(communication_limit()) {}
  DeviceGroups& groups;
  const Device device;
  DeviceWatch watch;
  bool broken = false;
};

/// Ends all that is in flight: kernels that wait for others would keep the GPU from its own work.
[[noreturn]] void fail_with(DeviceRank& rank, GroupCommunicator& host, const std::string& message) {
  rank.broken = true;
  rank.watch.abort_all();
  host.give_up();
  throw CommunicatorError(message);
}

void check_sound(DeviceRank& rank, GroupCommunicator& host) {
  if (const std::string failure = rank.watch.failure(); !failure.empty()) {
    const std::string lost = host.lost_members();
    fail_with(rank, host, lost.empty() ? failure : fmt::format("{} ({})", failure, lost));
  }
}

class DeviceHandle final : public CollectiveHandle {
 public:
  DeviceHandle(std::shared_ptr<DeviceRank> rank, GroupCommunicator& host, std::string what,
               Event done, std::vector<Tensor> kept)
      : rank_(std::move(rank)),
        host_(host),
        what_(std::move(what)),
        done_(std::move(done)),
        kept_(std::move(kept)) {}
  ~DeviceHandle() override {
    SORTIE_CHECK(ordered_ || rank_->broken || std::uncaught_exceptions() > 0,
                 "{} is dropped while it is in flight", what_);
  }

  bool poll() override {
    host_.poll();
    if (done_.poll()) return ordered_ = true;
    check_sound(*rank_, host_);
    return false;
  }

  void wait() override {
    const auto begun = Clock::now();
    auto lost_since = Clock::time_point::max();
    while (!poll()) {
      if (waits_given_up())
        fail_with(*rank_, host_,
                  fmt::format("{}: given up, because this rank was asked to end", what_));
      const auto now = Clock::now();
      // A rank may be at its end, with nothing left to do for this collective.
      constexpr std::chrono::seconds kAfterAnEnd{2};
      if (const std::string lost = host_.lost_members(); !lost.empty()) {
        lost_since = std::min(lost_since, now);
        if (now - lost_since > kAfterAnEnd)
          fail_with(*rank_, host_, fmt::format("{}: {}", what_, lost));
      }
      constexpr std::chrono::microseconds kSpin{500}, kNap{50};
      if (now - begun < kSpin)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(kNap);
    }
  }

  void wait_on(ExecutionContext& context) override {
    context.wait(done_);
    ordered_ = true;
  }

 private:
  std::shared_ptr<DeviceRank> rank_;
  GroupCommunicator& host_;
  const std::string what_;
  const Event done_;
  std::vector<Tensor> kept_;
  bool ordered_ = false;  // done, or a stream waits for it
};

struct NoDeviceWork final : CollectiveHandle {
  bool poll() override { return true; }
  void wait() override {}
  void wait_on(ExecutionContext&) override {}
};

class DeviceCommunicator final : public Communicator {
 public:
  DeviceCommunicator(std::shared_ptr<DeviceRank> rank, std::unique_ptr<Communicator> host,
                     std::unique_ptr<DeviceGroup> group)
      : rank_(std::move(rank)),
        host_(static_cast<GroupCommunicator*>(host.release())),
        group_(std::move(group)) {
    if (group_) rank_->watch.add(*group_);
  }
  ~DeviceCommunicator() override {
    if (group_) rank_->watch.remove(*group_);
  }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  const std::string& name() const override { return host_->name(); }
  std::string library() const override { return rank_->groups.library(); }
  void poll() override { host_->poll(); }
  const std::atomic<std::uint64_t>* begun() const override { return host_->begun(); }

  Handle all_reduce_async(const Tensor& values, ReduceOp op, const Event& ready) override {
    if (!ours(values)) return host_->all_reduce_async(values, op, ready);
    SORTIE_CHECK(can_reduce(values.dtype(), op), "sum of {}", dtype_name(values.dtype()));
    return start(op == ReduceOp::sum ? Collective::all_reduce_sum : Collective::all_reduce_max,
                 values, values, [&] { return group_->all_reduce(values, op, ready); });
  }

  Handle reduce_scatter_async(const Tensor& input, const Tensor& output, ReduceOp op,
                              const Event& ready) override {
    if (!ours(input)) return host_->reduce_scatter_async(input, output, op, ready);
    SORTIE_CHECK(can_reduce(input.dtype(), op) && input.dtype() == output.dtype() &&
                     input.elements() == output.elements() * size(),
                 "reduce-scatter of {} {} into {} {} on {} ranks", input.elements(),
                 dtype_name(input.dtype()), output.elements(), dtype_name(output.dtype()), size());
    return start(
        op == ReduceOp::sum ? Collective::reduce_scatter_sum : Collective::reduce_scatter_max,
        input, output, [&] { return group_->reduce_scatter(input, output, op, ready); });
  }

  Handle all_gather_async(const Tensor& input, const Tensor& output, const Event& ready) override {
    if (!ours(input)) return host_->all_gather_async(input, output, ready);
    SORTIE_CHECK(input.dtype() == output.dtype() && output.elements() == input.elements() * size(),
                 "all-gather of {} {} into {} {} on {} ranks", input.elements(),
                 dtype_name(input.dtype()), output.elements(), dtype_name(output.dtype()), size());
    return start(Collective::all_gather, input, output,
                 [&] { return group_->all_gather(input, output, ready); });
  }

  Handle broadcast_async(const Tensor& values, int root, const Event& ready) override {
    if (!ours(values)) return host_->broadcast_async(values, root, ready);
    SORTIE_CHECK(root >= 0 && root < size(), "broadcast from rank {} of {}", root, size());
    return start(
        Collective::broadcast, values, values,
        [&] { return group_->broadcast(values, root, ready); }, root);
  }

  Handle all_to_all_async(const Tensor& input, std::span<const std::int64_t> send_counts,
                          const Tensor& output, std::span<const std::int64_t> receive_counts,
                          const Event& ready) override {
    if (!ours(input)) {
      return host_->all_to_all_async(input, send_counts, output, receive_counts, ready);
    }
    const auto sum = [](std::span<const std::int64_t> counts) {
      return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    };
    const auto ranks = static_cast<std::size_t>(size());
    const auto self = static_cast<std::size_t>(rank());
    SORTIE_CHECK(
        send_counts.size() == ranks && receive_counts.size() == ranks &&
            sum(send_counts) == input.elements() && sum(receive_counts) == output.elements() &&
            input.dtype() == output.dtype() && send_counts[self] == receive_counts[self],
        "all-to-all: counts {} and {} for {} and {} elements on {} ranks", sum(send_counts),
        sum(receive_counts), input.elements(), output.elements(), size());
    check_tensors(input, output);
    check_sound(*rank_, *host_);
    const std::uint64_t sequence =
        host_->begin_all_to_all(input.dtype(), send_counts, receive_counts);
    return in_flight(Collective::all_to_all, sequence, input, output, [&] {
      return group_->all_to_all(input, send_counts, output, receive_counts, ready);
    });
  }

  // By way of the host: receives are posted long ahead, and a kernel that waits for one would hold
  // up all that its group's stream is given after it.
  // Not on a line, which has nothing else to do.
  Handle send_async(const Tensor& values, int to, const Event& ready) override {
    if (!line_ || !ours(values)) return host_->send_async(values, to, ready);
    return start_message("send", values, [&] { return group_->send(values, to, ready); });
  }
  Handle receive_async(const Tensor& values, int from, const Event& ready) override {
    if (!line_ || !ours(values)) return host_->receive_async(values, from, ready);
    return start_message("receive", values, [&] { return group_->receive(values, from, ready); });
  }
  void barrier() override { host_->barrier(); }

  std::unique_ptr<Communicator> split(int color, int key, std::string name) override {
    auto host = host_->split(color, key, name);
    std::unique_ptr<DeviceGroup> group;
    // A rank alone needs no group.
    if (group_)
      group = group_->split(host && host->size() > 1 ? color : -1, key, name,
                            [this] { keep_waiting(); });
    if (!host) return nullptr;
    return std::make_unique<DeviceCommunicator>(rank_, std::move(host), std::move(group));
  }

  bool between_devices() const { return group_ != nullptr; }
  std::unique_ptr<Communicator> line(int from, int to) {
    const bool ours = rank() == from || rank() == to;
    auto line =
        split(ours ? 0 : -1, rank() == from ? 0 : 1, fmt::format("{}, {} to {}", name(), from, to));
    if (line) static_cast<DeviceCommunicator&>(*line).line_ = true;
    return line;
  }

  std::vector<std::string> all_gather(std::string_view text) override {
    return host_->all_gather(text);
  }
  using Communicator::all_gather;
  bool meet(std::chrono::milliseconds limit) override { return host_->meet(limit); }
  void abort(int exit_code) override { host_->abort(exit_code); }

 private:
  /// A tensor that travels between GPUs; in a group of one nothing travels.
  bool ours(const Tensor& values) const {
    return values.device().kind == DeviceKind::cuda && group_ != nullptr;
  }
  void check_tensors(const Tensor& input, const Tensor& output) const {
    SORTIE_CHECK(input.dense() && output.dense(), "a collective takes dense tensors");
    SORTIE_CHECK(input.device() == rank_->device && output.device() == rank_->device,
                 "a collective of {} with tensors of {} and {}", rank_->device.to_string(),
                 input.device().to_string(), output.device().to_string());
  }
  void keep_waiting() {
    host_->poll();
    if (waits_given_up()) throw CommunicatorError("given up, because this rank was asked to end");
  }

  template <class Call>
  Handle start(Collective collective, const Tensor& input, const Tensor& output, const Call& call,
               int root = -1) {
    check_tensors(input, output);
    check_sound(*rank_, *host_);
    const std::uint64_t sequence = host_->begin(collective, input.elements(), input.dtype(), root);
    if (input.elements() == 0) return std::make_unique<NoDeviceWork>();
    return in_flight(collective, sequence, input, output, call);
  }

  template <class Call>
  Handle in_flight(Collective collective, std::uint64_t sequence, const Tensor& input,
                   const Tensor& output, const Call& call) {
    return in_flight(host_->label(collective, sequence), input, output, call);
  }

  /// The two ends are not compared in the debug mode: neither waits for the other.
  template <class Call>
  Handle start_message(const char* direction, const Tensor& values, const Call& call) {
    check_tensors(values, values);
    check_sound(*rank_, *host_);
    return in_flight(fmt::format("{} {}", direction, messages_++), values, values, call);
  }

  template <class Call>
  Handle in_flight(const std::string& label, const Tensor& input, const Tensor& output,
                   const Call& call) {
    std::string what = fmt::format("{} of group {} ({} ranks)", label, name(), size());
    Event done;
    try {
      done = call();
    } catch (const CommunicatorError& error) {
      const std::string lost = host_->lost_members();
      fail_with(*rank_, *host_,
                fmt::format("{}: {}{}", what, error.what(), lost.empty() ? "" : " (" + lost + ")"));
    }
    rank_->watch.started(*group_, done, what);
    return std::make_unique<DeviceHandle>(rank_, *host_, std::move(what), std::move(done),
                                          std::vector<Tensor>{input, output});
  }

  const std::shared_ptr<DeviceRank> rank_;
  const std::unique_ptr<GroupCommunicator> host_;
  const std::unique_ptr<DeviceGroup> group_;  // null for a rank alone
  bool line_ = false;
  std::uint64_t messages_ = 0;  // of a line
};

}  // namespace

Result<std::unique_ptr<Communicator>> make_device_communicator(std::unique_ptr<Communicator> host,
                                                               DeviceGroups& groups,
                                                               Device device) {
  try {
    auto rank = std::make_shared<DeviceRank>(groups, device);
    std::unique_ptr<DeviceGroup> group;
    if (host->size() > 1) {
      const auto tell_all = [&](std::string text) { return host->all_gather(text)[0]; };
      const bool first = host->rank() == 0;
      const auto libraries = host->all_gather(groups.library());
      for (std::size_t other = 1; other < libraries.size(); ++other)
        if (libraries[other] != libraries[0])
          return fail(ErrorCode::unsupported,
                      fmt::format("rank {} has {}, rank 0 has {}: install the same on every host",
                                  other, libraries[other], libraries[0]));
      groups.adopt_settings(tell_all(first ? groups.settings() : ""));
      const std::string id = tell_all(first ? groups.new_id() : "");
      const auto limit = communication_limit();
      const auto begun = Clock::now();
      group = groups.join(device, id, host->rank(), host->size(), host->name(), [&] {
        host->poll();
        if (waits_given_up())
          throw CommunicatorError("given up, because this rank was asked to end");
        if (limit.count() > 0 && Clock::now() - begun > limit)
          throw CommunicatorError(fmt::format(
              "{}: not all ranks were connected after {:g} s; NCCL_DEBUG=INFO shows more",
              groups.library(), limit.count()));
      });
    }
    return std::make_unique<DeviceCommunicator>(std::move(rank), std::move(host), std::move(group));
  } catch (const CommunicatorError& error) {
    return fail(ErrorCode::unsupported, error.what());
  }
}

bool sends_between_devices(const Communicator& group) {
  const auto* of_devices = dynamic_cast<const DeviceCommunicator*>(&group);
  return of_devices != nullptr && of_devices->between_devices();
}

std::unique_ptr<Communicator> make_line(Communicator& group, int from, int to) {
  SORTIE_CHECK(sends_between_devices(group), "a line of group {}", group.name());
  return static_cast<DeviceCommunicator&>(group).line(from, to);
}

}  // namespace sortie::trainer
