// Runs whose file of hosts (nodes.json) is on a disk that stalls, over fake hosts in memory.
#include <doctest/doctest.h>

#include <boost/asio/post.hpp>
#include <csignal>
#include <future>

#include "launcher/run/run_loop.h"
#include "tests/launcher/restarting.h"
#include "tests/launcher/scripts.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using test::after_start;
using test::contains;
using test::FakeRunner;
using test::in_turn;
using test::Restarting;
using test::run_until_stopped;
using test::succeed;
using Chronic = std::map<std::string, std::string>;

struct KilledOnce : Restarting {
  KilledOnce() : Restarting({{"h1", {0}}, {"h2", {0}}}) {
    in_turn(host("h1"), {run_until_stopped, succeed});
    in_turn(host("h2"), {after_start([](FakeRunner& runner) {
                           runner.exit_rank(runner.job.ranks[0].rank, SIGKILL, true);
                         }),
                         succeed});
  }

  /// Returns whether the I/O thread does other work while the calling function blocks.
  bool io_thread_is_free() {
    const auto done = std::make_shared<std::promise<void>>();
    boost::asio::post(io, [done] { done->set_value(); });
    return done->get_future().wait_for(std::chrono::seconds(3)) == std::future_status::ready;
  }
};

TEST_CASE("a stalled disk: the I/O thread goes on while a function of nodes.json blocks") {
  KilledOnce launch;
  int asked = 0, noted = 0;
  bool free = true;
  launch.known_hosts = [&]() -> Result<RunLoop::KnownHosts> {
    ++asked;
    free = launch.io_thread_is_free() && free;
    return RunLoop::KnownHosts{};
  };
  launch.note_blames = [&](const std::vector<Blame>& blames) -> Result<Chronic> {
    ++noted;
    CHECK(blames.at(0).host == "h2");
    free = launch.io_thread_is_free() && free;
    return Chronic{};
  };
  CHECK(launch.run().exit_code == 0);
  CHECK(asked > 0);
  CHECK(noted == 2);  // after each attempt
  CHECK(free);
}

TEST_CASE("a stalled disk: the run restarts without an answer, and waits for it only once") {
  KilledOnce launch;
  launch.job.recovery.max_restarts = 2;
  FileCalls impatient(launch.io.get_executor(), std::chrono::seconds(2));
  std::promise<void> disk_is_back;
  const std::shared_future<void> back = disk_is_back.get_future().share();
  int asked = 0;
  launch.files = &impatient;
  launch.note_blames = [back](const std::vector<Blame>&) -> Result<Chronic> {
    back.wait();
    return Chronic{};
  };
  launch.known_hosts = [&]() -> Result<RunLoop::KnownHosts> {
    ++asked;
    return RunLoop::KnownHosts{};
  };
  const Verdict verdict = launch.run();
  const int asked_before = asked;
  disk_is_back.set_value();
  CHECK(impatient.drain(std::chrono::seconds(60)));
  CHECK(verdict.exit_code == 0);
  CHECK(launch.events_named("attempt").size() == 2);
  CHECK(contains(launch.shown,
                 "nodes.json: the disk does not answer; the blames of this failure "
                 "may not be recorded"));
  CHECK(contains(launch.shown, "which hosts are cordoned now is not known"));
  CHECK(asked_before == 1);  // before the disk stalled
  CHECK(asked == 1);
}

}  // namespace
}  // namespace sortie::launcher
