// Tests of which ranks a collective between GPUs names when it makes no progress. Every rank is a
// thread with a separate emulated GPU; nccl_missing_rank.py does this with processes.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "tests/support/emulated.h"
#include "tests/support/scoped_variable.h"
#include "tests/trainer/parallel/memory_inquiry.h"
#include "tests/trainer/parallel/on_ranks.h"
#include "tests/trainer/parallel/socket_ranks.h"
#include "trainer/ops/elementwise.h"
#include "trainer/parallel/device_watch.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;
using sortie::test::ScopedVariable;

namespace {

/// Runs ranks that can ask each other, with a limit of 3 s. Rank r is on host h0r; `silent` ones do
/// not answer.
RankErrors run_asking_ranks(int size,
                            const std::function<void(Communicator&, ExecutionContext&)>& body,
                            std::set<int> silent = {}) {
  const ScopedVariable limit("SORTIE_COMM_TIMEOUT", "3");
  auto inquiries = std::make_shared<Inquiries>(size, std::move(silent));
  return run_gpu_ranks(size, body, [&](int rank) {
    return RunPlace{.host = fmt::format("h0{}", rank),
                    .inquiry = std::make_shared<MemoryInquiry>(inquiries, rank),
                    .position = [] { return std::string("step 12, data"); }};
  });
}

void sum(Communicator& group, ExecutionContext& context) {
  Tensor values = context.empty(DType::f32, {64});
  ops::fill(context, 1.0, values);
  group.all_reduce_async(values, ReduceOp::sum, context.record())->wait();
}

/// Counts ranks that have failed.
class Failures {
 public:
  /// Runs `wait`, which should fail.
  void of(const std::function<void()>& wait) {
    try {
      wait();
    } catch (...) {
      ++count_;
      throw;
    }
  }
  /// Blocks until `count` ranks have failed.
  void await(int count) const {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (count_ < count && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

 private:
  std::atomic<int> count_{0};
};

bool any_has(const RankErrors& errors, const std::string& text) {
  std::string all;
  for (const std::string& error : errors) all += error + "\n";
  INFO(all);
  CHECK(all.find(text) != std::string::npos);
  return all.find(text) != std::string::npos;
}

const std::string kStalled =
    "all-reduce 7 of group world (3 ranks): no collective between GPUs made progress for 3 s: ";
const std::string kAdvice = "; see what happened there, or set SORTIE_COMM_TIMEOUT to more seconds";

}  // namespace

TEST_CASE("nccl: a rank that does not come to a collective is named, with its host and place") {
  Failures failures;
  const RankErrors errors =
      run_asking_ranks(3, [&](Communicator& world, ExecutionContext& context) {
        sum(world, context);
        if (world.rank() == 1) return failures.await(2);
        failures.of([&] { sum(world, context); });
      });
  any_has(
      errors,
      kStalled + "rank 1 (h01) has not begun it and is in no collective (step 12, data)" + kAdvice);
}

TEST_CASE("nccl: ranks that do not answer are named together") {
  Failures failures;
  const RankErrors errors = run_asking_ranks(3,
                                             [&](Communicator& world, ExecutionContext& context) {
                                               sum(world, context);
                                               if (world.rank() != 1) return failures.await(1);
                                               failures.of([&] { sum(world, context); });
                                             },
                                             {0, 2});
  CHECK(errors[1] == kStalled +
                         "ranks 0,2 (h[00,02]) do not answer: their processes are stopped or have "
                         "ended, or their hosts can not be reached" +
                         kAdvice);
}

TEST_CASE("nccl: if all ranks have come to a collective that goes nowhere, none is named") {
  const ScopedVariable fault("SORTIE_EMULATED_NCCL_FAULT", "hang:2:1");
  const RankErrors errors = run_asking_ranks(3, [](Communicator& world, ExecutionContext& context) {
    sum(world, context);
    sum(world, context);
  });
  any_has(errors, kStalled +
                      "all 3 ranks have come to it: the network or a GPU is at fault, not the "
                      "program of a rank; NCCL_DEBUG=INFO shows more");
}

TEST_CASE("nccl: a rank in a collective of another group is named with it") {
  const RankErrors errors = run_asking_ranks(3, [](Communicator& world, ExecutionContext& context) {
    auto pair = world.split(world.rank() == 0 ? 1 : 0, world.rank(), "pair");
    sum(world, context);
    sum(*pair, context);
    sum(world.rank() == 1 ? *pair : world, context);
  });
  // Rank 1 may be the first to ask; it then finds rank 2.
  std::string all;
  for (const std::string& error : errors) all += error + "\n";
  INFO(all);
  const bool names_1 =
      all.find("rank 1 (h01) has not begun it and waits in all-reduce 1 of group pair (2 ranks)") !=
      std::string::npos;
  const bool names_2 =
      all.find(
          "all-reduce 1 of group pair (2 ranks): no collective between GPUs made progress for 3 s: "
          "rank 2 (h02) has not begun it and waits in all-reduce 8 of group world (3 ranks)") !=
      std::string::npos;
  CHECK((names_1 || names_2));
}

TEST_CASE("nccl: a rank that waits for messages of the host is named with what it waits for") {
  Failures failures;
  const RankErrors errors =
      run_asking_ranks(2, [&](Communicator& world, ExecutionContext& context) {
        sum(world, context);
        if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1000));
        if (world.rank() == 1) return world.barrier();
        failures.of([&] { sum(world, context); });
      });
  any_has(errors, "rank 1 (h01) has not begun it and waits in barrier 7 of group world (2 ranks)" +
                      kAdvice);
}

TEST_CASE("nccl: ranks that issue different collectives are named with both") {
  const RankErrors errors = run_asking_ranks(2, [](Communicator& world, ExecutionContext& context) {
    sum(world, context);
    Tensor values = context.empty(DType::f32, {64});
    ops::fill(context, 1.0, values);
    const Event ready = context.record();
    if (world.rank() == 0)
      world.all_reduce_async(values, ReduceOp::sum, ready)->wait();
    else
      world.broadcast_async(values, 0, ready)->wait();
  });
  std::string all = errors[0] + "\n" + errors[1];
  INFO(all);
  // Whichever asked first.
  CHECK((all.find("rank 1 (h01) is in broadcast 7 of group world (2 ranks) instead: ranks do not "
                  "issue the same collectives") != std::string::npos ||
         all.find("rank 0 (h00) is in all-reduce 7 of group world (2 ranks) instead: ranks do not "
                  "issue the same collectives") != std::string::npos));
}

TEST_CASE("nccl: a GPU that hangs before a collective is named, not the ranks that wait for it") {
  Failures failures;
  const RankErrors errors =
      run_asking_ranks(2, [&](Communicator& world, ExecutionContext& context) {
        sum(world, context);
        world.barrier();
        if (world.rank() == 1) set_emulated("sortie_emulated_hang", 1, 0);
        std::thread release;
        if (world.rank() == 1)
          release = std::thread([&] {
            failures.await(1);
            set_emulated("sortie_emulated_hang", 1, kNeverHangs);
          });
        try {
          if (world.rank() == 0)
            failures.of([&] { sum(world, context); });
          else
            sum(world, context);
        } catch (...) {
          if (release.joinable()) release.join();
          throw;
        }
        if (release.joinable()) release.join();
      });
  any_has(errors,
          "all-reduce 8 of group world (2 ranks): no collective between GPUs made progress for 3 "
          "s: the GPU of rank 1 (h01) has not reached it: earlier work on that GPU has not ended" +
              kAdvice);
}

TEST_CASE("nccl: a rank that does not come to the first collective of a group is named") {
  Failures failures;
  const RankErrors errors =
      run_asking_ranks(2, [&](Communicator& world, ExecutionContext& context) {
        if (world.rank() == 1) return failures.await(1);
        failures.of([&] { sum(world, context); });
      });
  CHECK(errors[0] ==
        "all-reduce 6 of group world (2 ranks): NCCL 2.28.9 did not begin in 3 s (ranks connect "
        "when they use a group first): rank 1 (h01) has not begun it and is in no collective (step "
        "12, data)" +
            kAdvice);
}

TEST_CASE("nccl: an error of the library names the rank that is gone, or says that all answer") {
  const ScopedVariable fault("SORTIE_EMULATED_NCCL_FAULT", "error:1:1");
  const auto twice = [](Communicator& world, ExecutionContext& context) {
    sum(world, context);
    sum(world, context);
  };
  SUBCASE("a rank is gone") {
    const RankErrors errors = run_asking_ranks(3, twice, {2});
    INFO(errors[1]);
    CHECK(errors[1].find("remote process exited") != std::string::npos);
    any_has(errors,
            "; rank 2 (h02) does not answer: its process is stopped or has ended, or its host can "
            "not be reached; see what happened there");
  }
  SUBCASE("all answer") {
    const RankErrors errors = run_asking_ranks(3, twice);
    any_has(errors, "; all 3 ranks of the run answer: the network or a GPU is at fault");
  }
}

namespace {

/// A group without collectives, whose query of errors blocks until it is released.
struct StuckGroup final : DeviceGroup {
  std::promise<void> asked, released;
  std::atomic<bool> first{true};

  Event all_reduce(const Tensor&, ReduceOp, const Event&, const WhileWaiting&) override {
    return {};
  }
  Event reduce_scatter(const Tensor&, const Tensor&, ReduceOp, const Event&,
                       const WhileWaiting&) override {
    return {};
  }
  Event all_gather(const Tensor&, const Tensor&, const Event&, const WhileWaiting&) override {
    return {};
  }
  Event broadcast(const Tensor&, int, const Event&, const WhileWaiting&) override { return {}; }
  Event all_to_all(const Tensor&, std::span<const std::int64_t>, const Tensor&,
                   std::span<const std::int64_t>, const Event&, const WhileWaiting&) override {
    return {};
  }
  Event exchange(std::span<const DeviceMessage>, std::span<const DeviceMessage>, const Event&,
                 const WhileWaiting&) override {
    return {};
  }
  std::unique_ptr<DeviceGroup> split(int, int, const std::string&, const WhileWaiting&) override {
    return nullptr;
  }
  std::string problem() override {
    if (first.exchange(false)) {
      asked.set_value();
      released.get_future().wait();
    }
    return {};
  }
  bool idle() override { return true; }
};

struct NoGroups final : DeviceGroups {
  std::string library() const override { return "none"; }
  std::string settings() const override { return {}; }
  void adopt_settings(const std::string&) override {}
  std::string new_id() override { return {}; }
  std::unique_ptr<DeviceGroup> join(Device, const std::string&, int, int, const std::string&,
                                    const WhileWaiting&) override {
    return nullptr;
  }
  void abort(std::span<DeviceGroup* const>) override {}
};

}  // namespace

TEST_CASE("nccl: a rank whose watch is blocked in a call of the driver says so") {
  auto inquiries = std::make_shared<Inquiries>(2, std::set<int>{});
  NoGroups library;
  StuckGroup group;
  DeviceWatch watch(
      library, std::chrono::seconds(0), std::make_shared<std::atomic<std::uint64_t>>(0),
      {.rank = 1, .place = {.inquiry = std::make_shared<MemoryInquiry>(inquiries, 1)}});
  watch.add(group, {.name = "world", .world_ranks = {0, 1}, .rank = 1});
  group.asked.get_future().wait();
  const WaitQuestion question{.rank = 0, .collective = {.group = "world", .size = 2}};
  const auto asks = [&](const std::shared_ptr<Inquiries>& of) {
    std::optional<WaitAnswer> answer;
    (void)MemoryInquiry(of, 0).ask(question.to_text(), [&](const auto& texts) {
      answer = WaitAnswer::parse(texts[1].value_or(""));
      return std::string();
    });
    inquiries->conclusion.reset();
    REQUIRE(answer);
    return answer->place;
  };
  CHECK(asks(inquiries) == WaitAnswer::Place::blocked);
  group.released.set_value();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(asks(inquiries) == WaitAnswer::Place::nowhere);
  watch.remove(group);
}
