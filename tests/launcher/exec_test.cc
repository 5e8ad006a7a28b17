// `sortie exec` over fake hosts in memory: independent hosts, the table, timeouts, Ctrl-C, stdin,
// folding.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <csignal>
#include <thread>

#include "launcher/exec/exec_run.h"
#include "launcher/exec/sinks.h"
#include "tests/support/fake_hosts.h"
#include "tests/support/patience.h"
#include "tests/support/run_within.h"
#include "tests/support/temp_dir.h"

namespace sortie::launcher {
namespace {

using boost::asio::awaitable;
using std::chrono::milliseconds;
using test::FakeRunner;
using Kind = Outcome::Kind;

/// One `sortie exec` in memory, with short timeouts.
struct Exec {
  explicit Exec(std::vector<std::string> hosts) {
    job.hosts = std::move(hosts);
    job.argv = {"true"};
    job.grace = milliseconds(100);
    job.run_id = "exec-test";
    runner.startup_timeout = std::chrono::seconds(30);
    runner.heartbeat_interval = milliseconds(20);
    runner.heartbeat_timeout = milliseconds(400);
    test::write_text(dir / "runner", "#!/bin/sh\n");
  }

  int run(ExecSink* sink = nullptr) {
    auto binary = RunnerBinary::open(dir / "runner");
    REQUIRE(binary);
    const Fd out(::open(dir.str("console").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600));
    Console::Style style;
    style.out = style.err = out.get();
    style.prefix = Console::Prefix::host;
    bool ended = false;
    {
      Console console(style);
      LiveSink live(console);
      ExecRun run({io.get_executor(),
                   transport,
                   *binary,
                   console,
                   {sink != nullptr ? sink : &live},
                   input,
                   stop_slack},
                  job, runner);
      current = &run;
      boost::asio::co_spawn(io, run.run(), [&](std::exception_ptr error) {
        ended = !error;
        io.stop();
      });
      ran = test::run_within(io, std::chrono::seconds(10));
      current = nullptr;
      outcomes = run.outcomes();
      interrupted = run.interrupted();
      table = failure_table(outcomes);
    }
    REQUIRE(ended);
    shown = test::read_text(dir / "console");
    return exec_exit_code(outcomes, interrupted);
  }
  void interrupt(int signal) {
    boost::asio::post(io, [this, signal] {
      if (current) current->interrupt(signal);
    });
  }
  test::FakeHost& host(const std::string& name) { return transport.host(name); }
  FakeRunner& on(const std::string& name) { return transport.runner(name); }
  const Outcome& outcome(const std::string& name) const {
    for (const HostOutcome& entry : outcomes)
      if (entry.host == name) return entry.outcome;
    FAIL("no such host");
    return outcomes[0].outcome;
  }

  test::ScopedTempDir dir;
  boost::asio::io_context io{1};
  test::FakeTransport transport{io.get_executor()};
  ExecJob job;
  config::RunnerConfig runner;
  std::shared_ptr<InputSource> input;
  std::vector<HostOutcome> outcomes;
  std::optional<int> interrupted;
  std::string shown, table;
  milliseconds stop_slack{5000};
  milliseconds ran{};
  ExecRun* current = nullptr;
};

/// Writes `text`, waits `after`, then exits with `code`.
test::FakeHost::Script says(std::string text, std::uint32_t code = 0, milliseconds after = {}) {
  struct Script {
    static awaitable<void> run(FakeRunner& runner, std::string text, std::uint32_t code,
                               milliseconds after) {
      const bool started = co_await runner.autostart();
      if (!started) co_return;
      if (after.count() > 0) co_await runner.sleep(after);
      if (!text.empty()) runner.send(wire::Output{0, wire::Stream::out, text});
      runner.exit_rank(0, code);
      co_await runner.finish(false);
    }
  };
  return [=](FakeRunner& runner) { return Script::run(runner, text, code, after); };
}

awaitable<void> until_stopped(FakeRunner& runner) {
  const bool started = co_await runner.autostart();
  if (!started) co_return;
  const bool told = co_await runner.until<wire::Stop>();
  if (told) co_await runner.finish(true, SIGTERM);
}

/// Never reacts to Stop.
awaitable<void> stuck(FakeRunner& runner) {
  co_await runner.autostart();
  co_await runner.until<wire::Goodbye>();
}

TEST_CASE("a job that starts by itself: one round trip, output with the host before it, Goodbye") {
  Exec exec({"a", "b"});
  exec.host("a").script = says("one\ntwo");
  exec.host("b").script = says("three\n");
  CHECK(exec.run() == 0);
  CHECK(exec.table.empty());
  CHECK(exec.shown.find("[a] one\n[a] two\n") != exec.shown.npos);
  CHECK(exec.shown.find("[b] three\n") != exec.shown.npos);
  CHECK(exec.ran < test::patient(milliseconds(4000)));
  for (const char* name : {"a", "b"}) {
    CHECK(exec.on(name).job.autostart == 1);
    CHECK(exec.on(name).job.mpi == 0);
    CHECK(exec.on(name).job.input_window == 0);
    CHECK(exec.on(name).all<wire::Start>().empty());
    CHECK(exec.on(name).all<wire::Goodbye>().size() == 1);
  }
  CHECK(exec.on("b").job.node_rank == 1);
}

TEST_CASE("one that fails stops no other; the first to fail gives the exit code") {
  Exec exec({"h1", "h2", "h3", "h4", "h5"});
  exec.host("h1").script = says("late but whole\n", 0, milliseconds(300));
  exec.host("h2").script = says("", 3);
  // Long after h2, even on a busy machine, so that h2 is the first to fail.
  exec.host("h3").script = says("", 9, milliseconds(1500));
  exec.host("h4").script = says("", 9, milliseconds(1500));
  exec.host("h5").connect_error = Error{ErrorCode::connect, "Connection refused"};
  exec.host("h5").connect_delay = milliseconds(1500);
  CHECK(exec.run() == 3);
  CHECK(exec.outcome("h1").kind == Kind::ok);
  CHECK(exec.shown.find("[h1] late but whole\n") != exec.shown.npos);
  CHECK(exec.table ==
        "4 of 5 hosts failed\n"
        "  failed       h2 (1)      exit code 3\n"
        "  failed       h[3-4] (2)  exit code 9\n"
        "  unreachable  h5 (1)      connect: Connection refused");
  CHECK(exec.on("h1").all<wire::Stop>().empty());
}

TEST_CASE("no more hosts at a time than the fan-out, and all get their turn") {
  std::vector<std::string> names;
  for (int i = 0; i < 40; ++i) names.push_back("n" + std::to_string(i));
  Exec exec(names);
  exec.job.fanout = 5;
  for (const std::string& name : names) {
    exec.host(name).connect_delay = milliseconds(5);
    exec.host(name).script = says(name + "\n");
  }
  CHECK(exec.run() == 0);
  CHECK(exec.transport.most_connecting == 5);
  for (const std::string& name : names)
    CHECK(exec.shown.find("[" + name + "] " + name + "\n") != exec.shown.npos);
}

/// Hosts that connect so slowly that others are served meanwhile, and count how many run at once.
struct SlowHosts {
  static awaitable<void> run(FakeRunner& runner, SlowHosts* hosts) {
    const bool prepared = co_await runner.prepare();
    if (!prepared) co_return;
    if (runner.job.autostart == 0) {
      const bool told = co_await runner.until<wire::Start>();
      if (!told) co_return;
    }
    hosts->most = std::max(hosts->most, ++hosts->running);
    runner.send(wire::RankStarted{0, 1000});
    co_await runner.sleep(milliseconds(1000));
    --hosts->running;
    co_await runner.finish(false);
  }
  void add(Exec& exec, const std::string& name) {
    exec.host(name).connect_delay = milliseconds(800);
    exec.host(name).script = [this](FakeRunner& runner) { return run(runner, this); };
  }
  int running = 0, most = 0;
};

TEST_CASE("hosts that connect slowly run no more commands at a time than the fan-out") {
  Exec exec({"a", "b", "c"});
  SlowHosts hosts;
  for (const char* name : {"a", "b", "c"}) hosts.add(exec, name);
  exec.job.fanout = 1;
  CHECK(exec.run() == 0);
  CHECK(hosts.most == 1);
  for (const char* name : {"a", "b", "c"}) {
    CHECK(exec.outcome(name).kind == Kind::ok);
    CHECK(exec.on(name).all<wire::Goodbye>().size() == 1);
  }
}

TEST_CASE("a host that waits for its turn: lost alone, and not started after Ctrl-C") {
  struct Lost {
    static awaitable<void> run(FakeRunner& runner) {
      const bool prepared = co_await runner.prepare();
      if (!prepared) co_return;
      runner.cut("Connection reset");
    }
  };
  struct Waits {
    static awaitable<void> run(FakeRunner& runner, Exec* exec) {
      const bool prepared = co_await runner.prepare();
      if (!prepared) co_return;
      co_await runner.sleep(milliseconds(200));
      exec->interrupt(SIGINT);
      co_await runner.until<wire::Start>();
    }
  };
  Exec exec({"lost", "waits", "runs"});
  exec.job.fanout = 1;
  // Each gives its place to the next one after half a second; "runs" has it when they connect.
  exec.host("lost").connect_delay = exec.host("waits").connect_delay = milliseconds(2500);
  exec.host("lost").script = Lost::run;
  exec.host("waits").script = [&](FakeRunner& runner) { return Waits::run(runner, &exec); };
  exec.host("runs").script = until_stopped;
  CHECK(exec.run() == 130);
  CHECK(exec.outcome("lost").kind == Kind::unreachable);
  CHECK(exec.outcome("waits").kind == Kind::skipped);
  CHECK(exec.on("waits").all<wire::Start>().empty());
  CHECK(exec.on("waits").job.autostart == 0);
  CHECK(exec.outcome("runs").kind == Kind::stopped);
}

TEST_CASE("a timeout is for each host alone: TERM, and given up on when nothing ends it") {
  Exec exec({"quick", "slow", "stuck"});
  exec.job.timeout = milliseconds(200);
  exec.stop_slack = milliseconds(500);
  exec.host("quick").script = says("x\n");
  exec.host("slow").script = until_stopped;
  exec.host("stuck").script = stuck;
  CHECK(exec.run() == 124);
  CHECK(exec.outcome("quick").kind == Kind::ok);
  CHECK(exec.outcome("slow").kind == Kind::timeout);
  CHECK(exec.outcome("slow").reason == "still ran after 0.2 s: signal 15 (SIGTERM)");
  CHECK(exec.on("slow").all<wire::Stop>().at(0).grace_ms == 100);
  CHECK(exec.outcome("stuck").kind == Kind::lost);
  CHECK(exec.outcome("stuck").reason.find("a process there may be stuck") != std::string::npos);
  CHECK(exec.ran < test::patient(milliseconds(5000)));
}

/// Sends Ctrl-C as soon as a command runs.
struct Impatient : ExecSink {
  explicit Impatient(Exec& of) : exec(of) {}
  void started(std::size_t, const std::string&) override { exec.interrupt(SIGINT); }
  void output(std::size_t, const std::string&, wire::Stream, std::string_view) override {}
  void finished(std::size_t, const std::string&, const Outcome&) override {}
  Exec& exec;
};

TEST_CASE("Ctrl-C: what runs is ended, what connects is let go, the rest is not begun") {
  Exec exec({"runs", "connects", "waits"});
  exec.job.fanout = 2;
  exec.host("connects").connect_delay = milliseconds(60000);
  exec.host("runs").script = until_stopped;
  Impatient sink(exec);  // before "connects" gives its place to "waits"
  CHECK(exec.run(&sink) == 130);
  CHECK(exec.outcome("runs").kind == Kind::stopped);
  CHECK(exec.outcome("connects").kind == Kind::skipped);
  CHECK(exec.outcome("waits").kind == Kind::skipped);
  CHECK(!exec.transport.has_runner("waits"));
  CHECK(exec.on("runs").all<wire::Stop>().at(0).grace_ms == 100);
  CHECK(exec.ran < test::patient(milliseconds(4000)));
}

TEST_CASE("Ctrl-C twice leaves no grace; while a host gets ready its answer is waited for") {
  Exec exec({"ready-late", "stubborn"});
  exec.job.grace = milliseconds(60000);
  struct Late {
    static awaitable<void> run(FakeRunner& runner, Exec* exec) {
      co_await runner.until<wire::JobSpec>();
      co_await runner.sleep(milliseconds(200));  // by then the other one runs
      exec->interrupt(SIGTERM);
      co_await runner.sleep(milliseconds(100));
      runner.send(wire::JobReady{});
      co_await runner.until<wire::Stop>();
      wire::RankExited exited;
      exited.signaled = exited.stopped = 1;
      exited.code = SIGTERM;
      runner.send(exited);
      runner.send(wire::Finished{});
      co_await runner.until<wire::Goodbye>();
      runner.end();
    }
  };
  struct Stubborn {
    static awaitable<void> run(FakeRunner& runner, Exec* exec) {
      co_await runner.autostart();
      co_await runner.until<wire::Stop>();
      while (exec->on("ready-late").all<wire::Goodbye>().empty())  // until that host is done
        co_await runner.sleep(milliseconds(5));
      exec->interrupt(SIGTERM);
      co_await runner.until<wire::Stop>();
      co_await runner.finish(true, SIGKILL);
    }
  };
  exec.host("ready-late").script = [&](FakeRunner& r) { return Late::run(r, &exec); };
  exec.host("stubborn").script = [&](FakeRunner& r) { return Stubborn::run(r, &exec); };
  CHECK(exec.run() == 143);
  CHECK(exec.outcome("ready-late").kind == Kind::stopped);
  const auto stops = exec.on("stubborn").all<wire::Stop>();
  REQUIRE(stops.size() == 2);
  CHECK(stops[0].grace_ms == 60000);
  CHECK(stops[1].grace_ms == 0);
}

TEST_CASE("hosts that go away, say nothing more, or talk nonsense are lost, alone") {
  struct Cut {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.autostart();
      runner.cut("Connection reset");
    }
  };
  struct Frozen {
    static awaitable<void> run(FakeRunner& runner) {
      co_await runner.autostart();
      runner.freeze();
    }
  };
  const auto sends = [](wire::Message message) {
    struct Script {
      static awaitable<void> run(FakeRunner& runner, wire::Message message) {
        co_await runner.autostart();
        runner.send(message);
      }
    };
    return [=](FakeRunner& runner) { return Script::run(runner, message); };
  };
  Exec exec({"cut", "frozen", "wrong-rank", "no-end", "fence", "credit", "flood", "fine"});
  exec.host("credit").script = sends(wire::InputCredit{1, 0});
  exec.host("flood").script =
      sends(wire::Output{0, wire::Stream::out, std::string((1u << 20) + 1, 'x')});
  exec.host("cut").script = Cut::run;
  exec.host("frozen").script = Frozen::run;
  exec.host("wrong-rank").script = sends(wire::Output{7, wire::Stream::out, "x"});
  exec.host("no-end").script = sends(wire::Finished{});
  exec.host("fence").script = sends(wire::PmixFence{});
  exec.host("fine").script = says("", 0, milliseconds(700));
  CHECK(exec.run() == 5);
  for (const char* name : {"cut", "frozen", "wrong-rank", "no-end", "fence", "credit", "flood"})
    CHECK_MESSAGE(exec.outcome(name).kind == Kind::lost, name);
  const std::string& frozen = exec.outcome("frozen").reason;
  CHECK(frozen.starts_with("no heartbeat for "));
  CHECK_MESSAGE(frozen.ends_with("; its command ends by itself"), frozen);
  // A command has no ranks.
  for (const char* name : {"cut", "frozen", "wrong-rank", "no-end", "fence", "credit", "flood"})
    CHECK_MESSAGE(exec.outcome(name).reason.find("rank") == std::string::npos,
                  exec.outcome(name).reason);
  CHECK(exec.outcome("fine").kind == Kind::ok);
}

TEST_CASE("stdin: every host the same bytes, within its window, at its own pace") {
  std::string data;
  for (int i = 0; i < 200000; ++i) data += std::to_string(i) + ",";
  struct Reader {
    static awaitable<void> run(FakeRunner& runner, std::string* got, milliseconds pause) {
      const bool started = co_await runner.autostart();
      if (!started) co_return;
      std::size_t unacknowledged = 0;
      bool within = true;
      for (;;) {
        const bool more = co_await runner.until<wire::Input>();
        if (!more) co_return;
        const auto piece = std::get<wire::Input>(runner.received.back().second);
        runner.received.clear();
        *got += piece.bytes;
        unacknowledged += piece.bytes.size();
        within = within && unacknowledged <= runner.job.input_window;
        if (piece.eof) break;
        if (unacknowledged < runner.job.input_window) continue;
        if (pause.count() > 0) co_await runner.sleep(pause);
        runner.send(wire::InputCredit{unacknowledged, 0});
        unacknowledged = 0;
      }
      runner.exit_rank(0, within ? 0 : 1);
      co_await runner.finish(false);
    }
  };
  struct Deaf {
    static awaitable<void> run(FakeRunner& runner, std::size_t* pieces) {
      const bool started = co_await runner.autostart();
      if (!started) co_return;
      // Grants credit for the rest, but reports that stdin is closed.
      std::uint64_t taken = 0;
      while (taken < runner.job.input_window) {
        const bool more = co_await runner.until<wire::Input>();
        if (!more) co_return;
        taken += std::get<wire::Input>(runner.received.back().second).bytes.size();
      }
      runner.received.clear();
      runner.send(wire::InputCredit{taken, 1});
      co_await runner.sleep(milliseconds(200));
      co_await runner.finish(false);  // records what arrives before Goodbye
      *pieces = runner.all<wire::Input>().size();
    }
  };
  for (const bool file : {true, false}) {
    CAPTURE(file);
    Exec exec({"quick", "slow", "deaf", "later"});
    exec.job.fanout = 3;
    int ends[2];
    Fd from;
    std::thread writer;
    if (file) {
      test::write_text(exec.dir / "data", "skipped" + data);
      from.reset(::open(exec.dir.str("data").c_str(), O_RDONLY | O_CLOEXEC));
      ::lseek(from.get(), 7, SEEK_SET);
    } else {
      REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
      from.reset(ends[0]);
      writer = std::thread([&, fd = ends[1]] {
        for (std::size_t at = 0; at < data.size();)
          at += static_cast<std::size_t>(::write(fd, data.data() + at, data.size() - at));
        ::close(fd);
      });
    }
    exec.input = *InputSource::open(exec.io.get_executor(), from.get());
    std::map<std::string, std::string> got;
    std::size_t deaf_pieces = 99;
    for (const char* name : {"quick", "slow", "later"})
      exec.host(name).script = [&, name](FakeRunner& runner) {
        return Reader::run(runner, &got[name], milliseconds(name[0] == 's' ? 20 : 0));
      };
    exec.host("deaf").script = [&](FakeRunner& r) { return Deaf::run(r, &deaf_pieces); };
    CHECK(exec.run() == 0);
    if (writer.joinable()) writer.join();
    for (const char* name : {"quick", "slow", "later"}) CHECK_MESSAGE(got[name] == data, name);
    CHECK(deaf_pieces == 0);
  }
}

TEST_CASE("stdin from /dev/null is an end, from a closed descriptor an error") {
  Exec exec({"h"});
  const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  exec.input = *InputSource::open(exec.io.get_executor(), null.get());
  struct Reader {
    static awaitable<void> run(FakeRunner& runner) {
      const bool started = co_await runner.autostart();
      if (!started) co_return;
      const bool got = co_await runner.until<wire::Input>();
      if (!got) co_return;
      const auto& input = std::get<wire::Input>(runner.received.back().second);
      runner.exit_rank(0, input.eof == 1 && input.bytes.empty() ? 0 : 1);
      co_await runner.finish(false);
    }
  };
  exec.host("h").script = Reader::run;
  CHECK(exec.run() == 0);
  CHECK(InputSource::open(exec.io.get_executor(), 987).error().code == ErrorCode::usage);
}

}  // namespace
}  // namespace sortie::launcher
