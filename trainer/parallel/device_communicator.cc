#include "trainer/parallel/device_communicator.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <numeric>

#include "common/base/log.h"
#include "trainer/parallel/device_handle.h"
#include "trainer/parallel/reduce_kernel.h"

namespace sortie::trainer {
namespace {

using Clock = std::chrono::steady_clock;

class DeviceCommunicator final : public Communicator {
 public:
  DeviceCommunicator(std::shared_ptr<DeviceRank> rank, std::unique_ptr<Communicator> host,
                     std::unique_ptr<DeviceGroup> group)
      : rank_(std::move(rank)),
        host_(static_cast<GroupCommunicator*>(host.release())),
        group_(std::move(group)) {
    if (group_) rank_->watch.add(*group_, host_->ranks());
  }
  ~DeviceCommunicator() override {
    if (!group_) return;
    finish();
    rank_->watch.remove(*group_);
  }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  const std::string& name() const override { return host_->name(); }
  std::string library() const override { return rank_->groups.library(); }
  std::string settings() const override {
    std::string lines = group_ ? rank_->groups.settings() : "";
    std::ranges::replace(lines, '\n', ' ');
    return lines.substr(0, lines.find_last_not_of(' ') + 1);
  }
  void poll() override { host_->poll(); }
  const std::atomic<std::uint64_t>* begun() const override { return host_->begun(); }

  Handle all_reduce_async(const Tensor& values, ReduceOp op, const Event& ready) override {
    if (!ours(values)) return host_->all_reduce_async(values, op, ready);
    SORTIE_CHECK(can_reduce(values.dtype(), op), "sum of {}", dtype_name(values.dtype()));
    return start(op == ReduceOp::sum ? Collective::all_reduce_sum : Collective::all_reduce_max,
                 values, values, ready, [&](const WhileWaiting& waiting) {
                   return group_->all_reduce(values, op, ready, waiting);
                 });
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
        input, output, ready, [&](const WhileWaiting& waiting) {
          return group_->reduce_scatter(input, output, op, ready, waiting);
        });
  }

  Handle all_gather_async(const Tensor& input, const Tensor& output, const Event& ready) override {
    if (!ours(input)) return host_->all_gather_async(input, output, ready);
    SORTIE_CHECK(input.dtype() == output.dtype() && output.elements() == input.elements() * size(),
                 "all-gather of {} {} into {} {} on {} ranks", input.elements(),
                 dtype_name(input.dtype()), output.elements(), dtype_name(output.dtype()), size());
    return start(Collective::all_gather, input, output, ready, [&](const WhileWaiting& waiting) {
      return group_->all_gather(input, output, ready, waiting);
    });
  }

  Handle broadcast_async(const Tensor& values, int root, const Event& ready) override {
    if (!ours(values)) return host_->broadcast_async(values, root, ready);
    SORTIE_CHECK(root >= 0 && root < size(), "broadcast from rank {} of {}", root, size());
    return start(
        Collective::broadcast, values, values, ready,
        [&](const WhileWaiting& waiting) {
          return group_->broadcast(values, root, ready, waiting);
        },
        root);
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
        host_->number_exchange(Collective::all_to_all, input.dtype(), send_counts, receive_counts);
    return in_flight(
        Collective::all_to_all, sequence, input, output, ready, [&](const WhileWaiting& waiting) {
          return group_->all_to_all(input, send_counts, output, receive_counts, ready, waiting);
        });
  }

  // Through the host: receives are posted long before they are needed, and a kernel that waits for
  // one would delay everything that is added to its group's stream after it. Exceptions are a line,
  // whose stream has no other work, and an exchange, which all ranks begin together.
  Handle send_async(const Tensor& values, int to, const Event& ready) override {
    if (!line_ || !ours(values)) return host_->send_async(values, to, ready);
    return start_message("send", values, ready, [&](const WhileWaiting& waiting) {
      return group_->exchange({{{values, to}}}, {}, ready, waiting);
    });
  }
  Handle receive_async(const Tensor& values, int from, const Event& ready) override {
    if (!line_ || !ours(values)) return host_->receive_async(values, from, ready);
    return start_message("receive", values, ready, [&](const WhileWaiting& waiting) {
      return group_->exchange({}, {{{values, from}}}, ready, waiting);
    });
  }
  Handle exchange(DType dtype, std::span<const DeviceMessage> sends,
                  std::span<const DeviceMessage> receives, const Event& ready) {
    std::vector<Tensor> kept;
    const auto counts_of = [&](std::span<const DeviceMessage> messages) {
      std::vector<std::int64_t> counts(static_cast<std::size_t>(size()));
      for (const auto& [values, other] : messages) {
        SORTIE_CHECK(other >= 0 && other < size() && other != rank() && values.dtype() == dtype,
                     "rank {} of {}: a message of {} {} in an exchange of {} with rank {}", rank(),
                     size(), values.elements(), dtype_name(values.dtype()), dtype_name(dtype),
                     other);
        check_tensors(values, values);
        counts[static_cast<std::size_t>(other)] += values.elements();
        kept.push_back(values);
      }
      return counts;
    };
    const auto send_counts = counts_of(sends), receive_counts = counts_of(receives);
    check_sound(*rank_, *host_);
    const std::uint64_t sequence =
        host_->number_exchange(Collective::exchange, dtype, send_counts, receive_counts);
    if (kept.empty()) return nothing(sequence);
    return in_flight(collective_name(Collective::exchange), sequence, std::move(kept), ready,
                     [&](const WhileWaiting& waiting) {
                       return group_->exchange(sends, receives, ready, waiting);
                     });
  }
  void barrier() override { host_->barrier(); }

  std::unique_ptr<Communicator> split(int color, int key, std::string name) override {
    auto host = host_->split(color, key, name);
    std::unique_ptr<DeviceGroup> group;
    // A group of one needs no DeviceGroup.
    if (group_) {
      check_sound(*rank_, *host_);
      const std::string what = fmt::format("split of group {} into {}", this->name(), name);
      rank_->watch.call_began(what);
      attempt(what, nullptr, [&](auto& waiting) {
        group = group_->split(host && host->size() > 1 ? color : -1, key, name, waiting);
      });
      rank_->watch.call_ended();
    }
    if (!host) return nullptr;
    return std::make_unique<DeviceCommunicator>(rank_, std::move(host), std::move(group));
  }

  bool between_devices() const { return group_ != nullptr; }
  const std::atomic<bool>& waits() const { return rank_->watch.waits(); }
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
  /// Whether a tensor is sent between GPUs; never in a group of one.
  bool ours(const Tensor& values) const {
    return values.device().kind == DeviceKind::cuda && group_ != nullptr;
  }
  void check_tensors(const Tensor& input, const Tensor& output) const {
    SORTIE_CHECK(input.dense() && output.dense(), "a collective takes dense tensors");
    SORTIE_CHECK(input.device() == rank_->device && output.device() == rank_->device,
                 "a collective of {} with tensors of {} and {}", rank_->device.to_string(),
                 input.device().to_string(), output.device().to_string());
  }
  /// Waits until the GPU has completed all work of the group. If that fails, or if the stack is
  /// being unwound, aborts all groups of the rank.
  void finish() {
    if (rank_->broken) return;
    std::string why = std::uncaught_exceptions() > 0 ? "an exception passes by" : "";
    for (DeviceWait wait(*rank_, *host_); why.empty() && !group_->idle(); wait.nap()) {
      why = wait.failed();
      if (!why.empty()) log::warning("end of group {}: {}", name(), why);
    }
    if (why.empty()) return;
    rank_->broken = true;
    rank_->watch.abort_all();
  }

  /// Calls `call` with a function that ends futile waits. If it fails, aborts all groups of the
  /// rank. `begins`: the collective that the call begins, or nullptr.
  template <class Call>
  void attempt(const std::string& what, const CollectiveName* begins, const Call& call) {
    DeviceWait wait(*rank_, *host_);
    const WhileWaiting waiting = [&wait, begins] {
      if (const std::string why = wait.call_failed(begins); !why.empty())
        throw CommunicatorError(why);
    };
    try {
      call(waiting);
    } catch (const CommunicatorError& error) {
      const std::string lost = host_->lost_members(), said = error.what();
      const bool told = lost.empty() || said.find(lost) != std::string::npos;
      fail_with(*rank_, *host_, fmt::format("{}: {}{}", what, said, told ? "" : " (" + lost + ")"));
    }
  }

  /// `ready` is what `call` makes the collective wait for.
  template <class Call>
  Handle start(Collective collective, const Tensor& input, const Tensor& output, const Event& ready,
               const Call& call, int root = -1) {
    check_tensors(input, output);
    check_sound(*rank_, *host_);
    const std::uint64_t sequence = host_->number(collective, input.elements(), input.dtype(), root);
    if (input.elements() == 0) return nothing(sequence);
    return in_flight(collective, sequence, input, output, ready, call);
  }
  /// A collective without elements.
  Handle nothing(std::uint64_t sequence) {
    rank_->watch.passed(*group_, sequence);
    return std::make_unique<NoDeviceWork>();
  }

  template <class Call>
  Handle in_flight(Collective collective, std::uint64_t sequence, const Tensor& input,
                   const Tensor& output, const Event& ready, const Call& call) {
    return in_flight(collective_name(collective), sequence, {input, output}, ready, call);
  }

  /// The debug mode does not compare the two ends, because neither waits for the other.
  template <class Call>
  Handle start_message(const char* direction, const Tensor& values, const Event& ready,
                       const Call& call) {
    check_tensors(values, values);
    check_sound(*rank_, *host_);
    return in_flight(direction, messages_++, {values}, ready, call, true);
  }

  template <class Call>
  Handle in_flight(std::string_view operation, std::uint64_t number, std::vector<Tensor> kept,
                   const Event& ready, const Call& call, bool message = false) {
    CollectiveName collective{.group = name(),
                              .first = host_->ranks().world_ranks[0],
                              .size = size(),
                              .operation = std::string(operation),
                              .number = number,
                              .message = message};
    std::string what = collective.text();
    Event done;
    rank_->watch.call_began(what, collective);
    attempt(what, &collective, [&](const WhileWaiting& waiting) { done = call(waiting); });
    rank_->watch.started(*group_, std::move(collective), ready, done);
    return std::make_unique<DeviceHandle>(rank_, *host_, std::move(what), std::move(done),
                                          std::move(kept));
  }

  const std::shared_ptr<DeviceRank> rank_;
  const std::unique_ptr<GroupCommunicator> host_;
  const std::unique_ptr<DeviceGroup> group_;  // nullptr in a group of one
  bool line_ = false;
  std::uint64_t messages_ = 0;  // sent or received on a line
};

/// Checks that all ranks have the same library, and returns their hosts, by rank. Collective.
Result<std::vector<std::string>> hosts_with(Communicator& world, const std::string& library,
                                            const std::string& host) {
  std::vector<std::string> hosts, libraries;
  for (const std::string& text : world.all_gather(library + '\n' + host)) {
    libraries.push_back(text.substr(0, text.find('\n')));
    hosts.push_back(text.substr(libraries.back().size() + 1));
  }
  for (std::size_t other = 1; other < libraries.size(); ++other)
    if (libraries[other] != libraries[0])
      return fail(ErrorCode::unsupported,
                  fmt::format("rank {} has {}, rank 0 has {}: install the same on every host",
                              other, libraries[other], libraries[0]));
  return hosts;
}

}  // namespace

Result<std::unique_ptr<Communicator>> make_device_communicator(std::unique_ptr<Communicator> host,
                                                               DeviceGroups& groups, Device device,
                                                               RunPlace place) {
  try {
    auto& messages = static_cast<GroupCommunicator&>(*host);
    WatchedRank watched{.rank = host->rank(), .waits_in = messages.long_wait()};
    if (host->size() > 1) {
      SORTIE_ASSIGN_OR_RETURN(watched.hosts, hosts_with(*host, groups.library(), place.host));
      messages.name_hosts(watched.hosts);
      watched.place = std::move(place);
    }
    auto rank =
        std::make_shared<DeviceRank>(groups, device, messages.counter(), std::move(watched));
    std::unique_ptr<DeviceGroup> group;
    if (host->size() > 1) {
      const auto tell_all = [&](std::string text) { return host->all_gather(text)[0]; };
      const bool first = host->rank() == 0;
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

const std::atomic<bool>* long_wait_between_devices(const Communicator& group) {
  const auto* of_devices = dynamic_cast<const DeviceCommunicator*>(&group);
  return of_devices != nullptr ? &of_devices->waits() : nullptr;
}

Communicator::Handle exchange_between_devices(Communicator& group, DType dtype,
                                              std::span<const DeviceMessage> sends,
                                              std::span<const DeviceMessage> receives,
                                              const Event& ready) {
  SORTIE_CHECK(sends_between_devices(group), "an exchange of group {}", group.name());
  return static_cast<DeviceCommunicator&>(group).exchange(dtype, sends, receives, ready);
}

std::unique_ptr<Communicator> make_line(Communicator& group, int from, int to) {
  SORTIE_CHECK(sends_between_devices(group), "a line of group {}", group.name());
  return static_cast<DeviceCommunicator&>(group).line(from, to);
}

}  // namespace sortie::trainer
