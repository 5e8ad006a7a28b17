// One `sortie run` in memory: a supervisor over FakeHosts, with short times.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "launcher/supervise/supervisor.h"
#include "tests/support/fake_hosts.h"
#include "tests/support/temp_dir.h"

namespace sortie::test {

using std::chrono::milliseconds;

class Launch {
 public:
  explicit Launch(std::initializer_list<config::HostSlots> hosts) : hosts_(hosts) {
    job.runner.program = {"true"};
    job.runner.grace = milliseconds(100);
    job.runner.startup_timeout = milliseconds(1000);
    job.runner.heartbeat_interval = milliseconds(20);
    job.runner.heartbeat_timeout = milliseconds(200);
    test::write_text(dir / "runner", "#!/bin/sh\n");
  }

  /// Runs to the end; the test fails when that takes more than eight seconds.
  launcher::Verdict run() {
    auto binary = launcher::RunnerBinary::open(dir / "runner");
    REQUIRE(binary);
    auto plan = launcher::make_plan(job, hosts_, {});
    REQUIRE(plan);
    auto folder = launcher::RunFolder::create(dir.path(), false);
    REQUIRE(folder);
    folder->track(job);
    const Fd out(::open(dir.str("console").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600));
    launcher::Console::Style style;
    style.out = style.err = out.get();
    style.terminal = terminal;
    std::optional<launcher::Verdict> verdict;
    {
      launcher::Console console(style);
      launcher::Supervisor supervisor({io.get_executor(), transport, transport, *binary, console,
                                       *folder, milliseconds(500), milliseconds(100)},
                                      job, *plan);
      supervisor_ = &supervisor;
      const auto begun = std::chrono::steady_clock::now();
      boost::asio::co_spawn(io, supervisor.run(),
                            [&](std::exception_ptr error, launcher::Verdict result) {
                              if (!error) verdict = std::move(result);
                              io.stop();
                            });
      io.run_for(std::chrono::seconds(8));
      took = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begun);
      supervisor_ = nullptr;
    }
    REQUIRE(verdict);
    REQUIRE(folder->drain(std::chrono::seconds(5)));
    shown = test::read_text(dir / "console");
    std::istringstream lines(test::read_text(folder->path() / "events.jsonl"));
    for (std::string line; std::getline(lines, line);)
      events.push_back(nlohmann::json::parse(line));
    run_folder = folder->path();
    return *verdict;
  }

  FakeHost& host(const std::string& name) { return transport.host(name); }
  FakeRunner& runner(const std::string& name) { return transport.runner(name); }
  /// As Ctrl-C does; from a script.
  void interrupt(int signal) {
    boost::asio::post(io, [this, signal] {
      if (supervisor_) supervisor_->interrupt(signal);
    });
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
  config::JobConfig job;
  bool terminal = false;  // as if the console were one
  std::string shown;      // the console, both streams
  std::vector<nlohmann::json> events;
  std::filesystem::path run_folder;
  milliseconds took{};

 private:
  std::vector<config::HostSlots> hosts_;
  launcher::Supervisor* supervisor_ = nullptr;
};

}  // namespace sortie::test
