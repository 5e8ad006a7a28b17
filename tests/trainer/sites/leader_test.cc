// Tests of a leader's thread, with the test as its coordinator.
#include "trainer/outer/leader.h"

#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "tests/support/memory_links.h"
#include "tests/support/patience.h"

using namespace sortie;
using namespace sortie::trainer;

namespace {

using namespace std::chrono_literals;

/// The coordinator of a single site. Every order contains only this site, and every exchange
/// counts. Orders wait until let() allows them.
class LoneCoordinator final : public outer::Coordinator {
 public:
  Result<training::OuterJoined> join(const training::OuterJoin&) override {
    return training::OuterJoined{};
  }
  Result<training::OuterWork> next(const training::OuterNext&) override {
    return training::OuterWork{};
  }
  Result<training::OuterExchange> ready(const training::OuterReady& ready) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return cancelled_ || orders_ > 0; });
    if (cancelled_) return fail(ErrorCode::interrupted, "called off");
    --orders_;
    return training::OuterExchange{ready.round, ready.fragment, ++epoch_, {{"a", "", 1.0}}, ""};
  }
  Result<training::OuterDecision> vote(const training::OuterVote& vote) override {
    return training::OuterDecision{vote.round, vote.fragment, vote.epoch, true, ""};
  }
  void leave(const training::OuterLeave&) override {}
  bool aborted(std::uint64_t) override { return false; }
  std::string left_out() override { return ""; }
  void cancel() override {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }
  void let(int orders) {
    const std::lock_guard lock(mutex_);
    orders_ += orders;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int orders_ = 0;
  std::uint64_t epoch_ = 0;
  bool cancelled_ = false;
};

/// The coordinator of two sites. The rank is told to end while the order is on its way to the
/// leader's thread.
class LateEnd final : public outer::Coordinator {
 public:
  std::function<void()> end = [] {};
  std::string suspect;  // of the last vote
  Result<training::OuterJoined> join(const training::OuterJoin&) override {
    return training::OuterJoined{};
  }
  Result<training::OuterWork> next(const training::OuterNext&) override {
    return training::OuterWork{};
  }
  Result<training::OuterExchange> ready(const training::OuterReady& ready) override {
    end();
    return training::OuterExchange{
        ready.round, ready.fragment, 1, {{"a", "", 0.5}, {"b", "", 0.5}}, ""};
  }
  Result<training::OuterDecision> vote(const training::OuterVote& vote) override {
    suspect = vote.suspect;
    return fail(ErrorCode::interrupted, "called off");
  }
  void leave(const training::OuterLeave&) override {}
  bool aborted(std::uint64_t) override { return false; }
  std::string left_out() override { return ""; }
  void cancel() override {}
};

/// Links to which no other site connects. As SiteLinks specifies, open() forgets an earlier
/// cancel().
class EmptyLinks final : public outer::SiteLinks {
 public:
  bool ended_in_time = false;
  std::string address() const override { return ""; }
  Result<> open(const training::OuterExchange&, std::size_t) override {
    std::unique_lock lock(mutex_);
    cancelled_ = false;
    ended_in_time = changed_.wait_for(lock, sortie::test::patient(20s), [&] { return cancelled_; });
    return fail(ErrorCode::interrupted, "the links were cancelled");
  }
  Result<> send(std::size_t, std::uint32_t, std::span<const std::byte>) override { return {}; }
  Result<> receive(std::size_t, std::uint32_t, std::span<std::byte>) override { return {}; }
  Result<> flush() override { return {}; }
  void cancel() override {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }
  outer::LinkCounters counters() const override { return {}; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool cancelled_ = false;
};

/// Links that do not reach the other site.
class ClosedLinks final : public outer::SiteLinks {
 public:
  std::string address() const override { return ""; }
  Result<> open(const training::OuterExchange&, std::size_t) override {
    return fail(ErrorCode::lost, "neither side has reached the other");
  }
  std::optional<std::size_t> unreached() const override { return 1; }
  Result<> send(std::size_t, std::uint32_t, std::span<const std::byte>) override { return {}; }
  Result<> receive(std::size_t, std::uint32_t, std::span<std::byte>) override { return {}; }
  Result<> flush() override { return {}; }
  void cancel() override {}
  outer::LinkCounters counters() const override { return {}; }
};

/// The leader of a site that exchanges its change with another one.
struct OfTwo {
  explicit OfTwo(outer::SiteLinks& links)
      : leader(outer::LeaderParts{site, coordinator, links, state, memory, 1}, {2}) {
    site.name = "a";
  }
  Result<outer::LeaderAnswer> exchange() {
    leader.start(outer::ExchangeTask{.round = 1,
                                     .fragment = 0,
                                     .tokens = 10,
                                     .abstains = false,
                                     .reason = "",
                                     .change = {0.5f, 0.5f}});
    while (!leader.has_answer()) leader.wait(100ms);
    return leader.take();
  }

  outer::Site site;
  LateEnd coordinator;
  outer::OuterState state{0, {1.0f, 2.0f}, {0.0f, 0.0f}};
  outer::LeaderMemory memory;
  outer::Leader leader;
};

struct Alone {
  outer::Site site;
  LoneCoordinator coordinator;
  testing::MemoryNetwork network{{}};
  std::unique_ptr<outer::SiteLinks> links = network.links("a", 0);
  outer::OuterState state{0, {1.0f, 2.0f, 3.0f, 4.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
  outer::LeaderMemory memory;
  std::unique_ptr<outer::Leader> leader;

  Alone() {
    site.name = "a";
    site.settings.learning_rate = 1.0;
    site.settings.momentum = 0.0;
    site.settings.wire = config::OuterWire::f32;
    leader = std::make_unique<outer::Leader>(
        outer::LeaderParts{site, coordinator, *links, state, memory, 1},
        std::vector<std::int64_t>{2, 2});
  }
  void send(std::int64_t fragment) {
    leader->start(outer::ExchangeTask{.round = 1,
                                      .fragment = fragment,
                                      .tokens = 10,
                                      .abstains = false,
                                      .reason = "",
                                      .change = {0.5f, 0.5f}});
  }
  void await_answer() {
    while (!leader->has_answer()) leader->wait(100ms);
  }
};

}  // namespace

TEST_CASE("a leader returns what counts, and does not change the outer weights") {
  Alone alone;
  const std::vector<float> before = alone.state.weights;
  alone.coordinator.let(2);
  for (const std::int64_t fragment : {0, 1}) {
    alone.send(fragment);
    alone.await_answer();
    const auto taken = alone.leader->take();
    REQUIRE(taken);
    CHECK(std::get<outer::ExchangeOutcome>(*taken).values == std::vector<float>{0.5f, 0.5f});
    CHECK(alone.state.weights == before);
  }
}

TEST_CASE("a leader that is cancelled before its links are open does not wait for other sites") {
  EmptyLinks links;
  OfTwo one(links);
  one.coordinator.end = [&] { one.leader.cancel(); };
  CHECK(one.exchange().error().code == ErrorCode::interrupted);
  CHECK(links.ended_in_time);
}

TEST_CASE("a leader names the site that its links do not reach") {
  ClosedLinks links;
  OfTwo one(links);
  CHECK_FALSE(one.exchange());
  CHECK(one.coordinator.suspect == "b");
}

TEST_CASE("a leader that was cancelled answers what is asked later, however late") {
  for (const auto pause : {0ms, 0ms, 0ms, 300ms}) {  // by then its thread has ended or not
    Alone alone;
    alone.coordinator.let(1);
    alone.send(0);
    alone.await_answer();  // it counts; after that, the rank is told to end
    alone.leader->cancel();
    std::this_thread::sleep_for(pause);
    CHECK(alone.leader->take());
    alone.leader->start(training::OuterNext{.round = 2, .step_seconds = 1.0});
    for (int i = 0; i < 100 && !alone.leader->has_answer(); ++i) alone.leader->wait(100ms);
    REQUIRE(alone.leader->has_answer());
    CHECK(alone.leader->take().error().code == ErrorCode::interrupted);
  }
}
