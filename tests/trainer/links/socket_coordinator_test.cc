// Tests of a leader's connection to the coordinator, with a runner and a launcher that answer late,
// twice, or not at all.
#include "trainer/outer/socket_coordinator.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>

#include "tests/support/temp_dir.h"

namespace sortie::trainer::outer {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

/// A socket like that of a runner, with one leader.
class FakeRunner {
 public:
  FakeRunner() : path_(folder_.path() / "rank.sock"), listener_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(listener_.get(), 4);
    CoordinatorTimes times;
    times.repeat = milliseconds(30);
    auto made = SocketCoordinator::make(path_, times);
    REQUIRE(made);
    coordinator = std::move(*made);
    link_ = Fd(::accept(listener_.get(), nullptr, nullptr));
    REQUIRE(read_line() == "{\"type\":\"listen\"}");
  }

  std::string read_line() {
    std::string line;
    for (char byte = 0; ::read(link_.get(), &byte, 1) == 1 && byte != '\n';) line += byte;
    return line;
  }
  training::NumberedQuestion question() {
    auto parsed = training::parse_outer_question(Json::parse(read_line()));
    REQUIRE(parsed);
    return *parsed;
  }
  void say(const std::string& text) {
    const std::string line = text + "\n";
    REQUIRE(::write(link_.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()));
  }
  void answer(std::uint64_t number, const training::OuterAnswer& answer) {
    say(to_json(answer, number).dump());
  }
  void go() { link_.reset(); }

  std::unique_ptr<SocketCoordinator> coordinator;

 private:
  test::ScopedTempDir folder_;
  std::string path_;
  Fd listener_, link_;
};

TEST_CASE("a question is repeated until it is answered, and late answers go to no other") {
  FakeRunner runner;
  auto asks = std::async(std::launch::async, [&] { return runner.coordinator->next({1, 0.5}); });
  const auto first = runner.question();
  CHECK(std::get<training::OuterNext>(first.question).step_seconds == 0.5);
  for (int i = 0; i < 3; ++i) CHECK(runner.question().number == first.number);
  runner.say("what is no JSON");
  runner.answer(first.number + 1, training::OuterWork{1, 1, 1, 1});
  runner.answer(first.number, training::OuterWork{1, 50, 4, 400});
  runner.answer(first.number, training::OuterWork{1, 50, 4, 400});
  const auto work = asks.get();
  REQUIRE(work);
  CHECK(work->first_sample == 400);
  asks = std::async(std::launch::async, [&] { return runner.coordinator->next({2, 0.5}); });
  std::uint64_t number = first.number;
  while (number == first.number) number = runner.question().number;  // skips repeats
  CHECK(number == first.number + 1);
  runner.answer(first.number, training::OuterWork{1, 50, 4, 400});
  CHECK(asks.wait_for(milliseconds(50)) == std::future_status::timeout);
  runner.answer(number, training::OuterWork{2, 60, 4, 900});
  CHECK(asks.get()->steps == 60);
}

TEST_CASE("refusals, aborts, cancel and the runner's end") {
  FakeRunner runner;
  auto asks = std::async(std::launch::async, [&] {
    return runner.coordinator->vote({1, 0, 9, true, 5, "", ""});
  });
  runner.answer(runner.question().number, training::OuterRefused{"another model"});
  const auto refused = asks.get();
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::config);
  CHECK(refused.error().message == "coordinator: another model");

  CHECK_FALSE(runner.coordinator->aborted(12));
  runner.answer(0, training::OuterAbort{12, "paris is gone"});
  auto ready = std::async(std::launch::async, [&] {
    return runner.coordinator->ready({1, 0, 4, false, ""});
  });
  std::uint64_t number = 0;  // number of the question after the repeats of the first
  for (training::NumberedQuestion one = runner.question(); number == 0; one = runner.question())
    if (std::holds_alternative<training::OuterReady>(one.question)) number = one.number;
  // An answer to another kind of question.
  runner.answer(number, training::OuterDecision{1, 0, 9, true, ""});
  CHECK(ready.get().error().code == ErrorCode::protocol);
  CHECK(runner.coordinator->aborted(12));
  CHECK_FALSE(runner.coordinator->aborted(11));

  runner.coordinator->leave({"told to"});
  ready = std::async(std::launch::async, [&] {
    return runner.coordinator->ready({1, 0, 4, false, ""});
  });
  runner.go();
  CHECK(ready.get().error().code == ErrorCode::lost);

  FakeRunner another;
  auto joins = std::async(std::launch::async, [&] {
    return another.coordinator->join({"berlin", 0, 1, 0, 0, true, 0, 10, "10.0.0.1:1"});
  });
  CHECK(std::get<training::OuterJoin>(another.question().question).address == "10.0.0.1:1");
  another.coordinator->cancel();
  CHECK(joins.get().error().code == ErrorCode::interrupted);
  CHECK(another.coordinator->next({1, 0.0}).error().code == ErrorCode::interrupted);
  CHECK_FALSE(SocketCoordinator::make("/nowhere/rank.sock"));
  CHECK_FALSE(SocketCoordinator::make(""));
}

TEST_CASE("an answer that was given is taken back, and no other one") {
  FakeRunner runner;
  auto asks = std::async(std::launch::async, [&] { return runner.coordinator->next({1, 0.5}); });
  const std::uint64_t number = runner.question().number;
  runner.answer(0, training::OuterRefused{"of no question"});  // while it is waited for
  runner.answer(number, training::OuterWork{1, 50, 4, 400});
  REQUIRE(asks.get());
  CHECK(runner.coordinator->left_out() == "");
  const auto wait_for = [&](const std::string& reason) {
    for (int i = 0; i < 500 && runner.coordinator->left_out() != reason; ++i)
      std::this_thread::sleep_for(milliseconds(10));
    CHECK(runner.coordinator->left_out() == reason);
  };
  runner.answer(number - 1, training::OuterRefused{"of an earlier one"});
  runner.answer(number, training::OuterRefused{"round 1 goes on"});
  wait_for("round 1 goes on");
  asks = std::async(std::launch::async, [&] { return runner.coordinator->next({2, 0.5}); });
  std::uint64_t second = number;
  while (second == number) second = runner.question().number;  // skips repeats
  CHECK(runner.coordinator->left_out() == "");
  runner.answer(second, training::OuterWork{2, 50, 4, 400});
  REQUIRE(asks.get());
  runner.answer(number, training::OuterRefused{"late"});
  runner.answer(0, training::OuterRefused{"another supervisor"});
  wait_for("another supervisor");
}

}  // namespace
}  // namespace sortie::trainer::outer
