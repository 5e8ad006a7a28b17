// One `sortie run` in memory: a RunLoop over FakeHosts, with short timeouts.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/asio/spawn.h"
#include "launcher/host/transport_router.h"
#include "launcher/run/run_loop.h"
#include "tests/support/fake_hosts.h"
#include "tests/support/run_within.h"
#include "tests/support/temp_dir.h"

namespace sortie::test {

using std::chrono::milliseconds;

/// A non-owning transport.
class Borrowed : public launcher::Transport {
 public:
  explicit Borrowed(launcher::Transport& transport) : transport_(transport) {}
  boost::asio::awaitable<Result<std::unique_ptr<launcher::Connection>>> connect(
      std::string host) override {
    return transport_.connect(std::move(host));
  }

 private:
  launcher::Transport& transport_;
};

class Launch {
 public:
  explicit Launch(std::initializer_list<config::HostSlots> hosts) : hosts_(hosts) {
    job.runner.program = {"true"};
    job.runner.grace = milliseconds(100);
    job.runner.startup_timeout = std::chrono::seconds(30);  // hosts answer at once, or are slow
    job.runner.heartbeat_interval = milliseconds(20);
    job.runner.heartbeat_timeout = milliseconds(200);
    test::write_text(dir / "runner", "#!/bin/sh\n");
  }

  /// Runs to the end. Fails the test if that takes longer than `limit`.
  launcher::Verdict run() {
    auto binary = launcher::RunnerBinary::open(dir / "runner");
    REQUIRE(binary);
    auto plan = launcher::make_plan(job, hosts_, facts);
    REQUIRE(plan);
    auto folder = launcher::RunFolder::create(dir.path(), false);
    REQUIRE(folder);
    folder->track(job);
    folder->obey(newer());
    const Fd out(::open(dir.str("console").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600));
    launcher::Console::Style style;
    style.out = style.err = out.get();
    style.terminal = terminal;
    std::optional<launcher::Verdict> verdict;
    {
      launcher::Console console(style);
      launcher::RunLoop loop(parts(*binary, console, *folder), job, *plan);
      loop_ = &loop;
      const auto begun = std::chrono::steady_clock::now();
      boost::asio::co_spawn(io, loop.run(),
                            [&](std::exception_ptr error, launcher::Verdict result) {
                              if (!error) verdict = std::move(result);
                              io.stop();
                            });
      if (on_state_) spawn(io, watch_state());
      ran = test::run_within(io, limit);
      took = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begun);
      loop_ = nullptr;
    }
    REQUIRE(verdict);
    REQUIRE(folder->drain(std::chrono::seconds(60)));
    shown = test::read_text(dir / "console");
    std::istringstream lines(test::read_text(folder->path() / "events.jsonl"));
    for (std::string line; std::getline(lines, line);)
      events.push_back(nlohmann::json::parse(line));
    run_folder = folder->path();
    return *verdict;
  }

  /// Once this file exists another supervisor has adopted the run.
  std::filesystem::path newer() const { return dir / "newer"; }
  FakeHost& host(const std::string& name) { return transport.host(name); }
  FakeRunner& runner(const std::string& name) { return transport.runner(name); }
  /// Interrupts the run with `signal`, as Ctrl-C does. For use in scripts.
  void interrupt(int signal) {
    boost::asio::post(io, [this, signal] {
      if (loop_) loop_->interrupt(signal);
    });
  }
  /// Stops the run, as `sortie stop` does. For use in scripts.
  void stop() {
    boost::asio::post(io, [this] {
      if (loop_) loop_->stop(false);
    });
  }
  /// Calls `act` once, when RunLoop::state() first equals `state`.
  void on_state(std::string state, std::function<void(launcher::RunLoop&)> act) {
    state_ = std::move(state);
    on_state_ = std::move(act);
  }
  std::vector<nlohmann::json> events_named(const std::string& name) const {
    std::vector<nlohmann::json> out;
    for (const auto& event : events)
      if (event["event"] == name) out.push_back(event);
    return out;
  }

  ScopedTempDir dir;
  boost::asio::io_context io{1};
  FakeTransport transport{io.get_executor()};
  launcher::TransportRouter router{std::make_unique<Borrowed>(transport),
                                   std::make_unique<Borrowed>(transport)};
  config::JobConfig job;
  launcher::LauncherFacts facts;
  std::vector<config::HostSlots> spares;
  std::function<Result<launcher::RunLoop::KnownHosts>()> known_hosts;
  launcher::RunLoop::Parts::Fitness fitness;
  std::function<Result<std::map<std::string, std::string>>(std::vector<launcher::Blame>)>
      note_blames;
  FileCalls file_calls{io.get_executor()};
  FileCalls* files = &file_calls;     // those of the run
  std::vector<std::string> cordoned;  // by the run, in this order
  std::chrono::seconds limit{8};
  milliseconds stop_slack{3000};  // for hosts that end their ranks in time
  milliseconds sweep_reach{100};  // for hosts that are not reached again
  bool terminal = false;          // the console behaves as on a terminal
  bool adopts = false;            // the first attempt adopts ranks that hosts hold
  std::string shown;              // output of the console, both streams
  std::vector<nlohmann::json> events;
  std::filesystem::path run_folder;
  milliseconds took{};
  milliseconds ran{};  // the part of `took` in which this process ran

 private:
  launcher::RunLoop::Parts parts(const launcher::RunnerBinary& binary, launcher::Console& console,
                                 launcher::RunFolder& folder) {
    launcher::RunLoop::Parts made{
        {io.get_executor(), router, binary, console, folder, stop_slack, sweep_reach},
        *files,
        [](const config::JobConfig& changed, const std::vector<config::HostSlots>& hosts) {
          return launcher::make_plan(changed, hosts, {});
        },
        hosts_,
        spares,
        {},
        0,
        known_hosts,
        [this](const std::vector<launcher::CordonOrder>& orders,
               const std::vector<std::string>&) -> Result<launcher::CordonOutcome> {
          launcher::CordonOutcome outcome;
          for (const auto& order : orders) outcome.cordoned.push_back(order.host);
          cordoned.insert(cordoned.end(), outcome.cordoned.begin(), outcome.cordoned.end());
          return outcome;
        },
        fitness,
        note_blames};
    made.attempt.adopts = adopts;
    return made;
  }

  boost::asio::awaitable<void> watch_state() {
    boost::asio::steady_timer tick(io);
    while (loop_ && loop_->state() != state_) {
      tick.expires_after(milliseconds(5));
      co_await tick.async_wait(boost::asio::use_awaitable);
    }
    if (loop_) on_state_(*loop_);
  }

  std::vector<config::HostSlots> hosts_;
  std::string state_;
  std::function<void(launcher::RunLoop&)> on_state_;
  launcher::RunLoop* loop_ = nullptr;
};

}  // namespace sortie::test
