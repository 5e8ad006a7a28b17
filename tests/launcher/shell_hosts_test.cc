// Lines of `sortie shell` over fake hosts in memory.
#include <doctest/doctest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <sstream>

#include "launcher/exec/fold_sink.h"
#include "launcher/shell/shell_hosts.h"
#include "tests/support/fake_hosts.h"
#include "tests/support/run_within.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using boost::asio::awaitable;
using test::FakeRunner;

/// Fake hosts in memory whose shells answer each line with `answer`.
struct Prompted {
  explicit Prompted(std::vector<std::string> names) : hosts_named(std::move(names)) {
    runner.startup_timeout = std::chrono::seconds(30);
    runner.heartbeat_interval = std::chrono::milliseconds(20);
    runner.heartbeat_timeout = std::chrono::milliseconds(400);
    test::write_text(dir / "runner", "#!/bin/sh\n");
  }

  /// Runs the lines one after another.
  void run(std::vector<std::string> lines) {
    auto binary = RunnerBinary::open(dir / "runner");
    REQUIRE(binary);
    ShellHosts hosts({io.get_executor(), transport, *binary,
                      [this](const std::string& host, const Outcome& outcome, bool in_line) {
                        gone += host + (in_line ? " in line: " : ": ") + outcome.reason + "\n";
                      },
                      [](std::size_t, const std::string&, std::string_view) {}},
                     hosts_named, runner, "shell-test");
    bool ended = false;
    boost::asio::co_spawn(io, play(hosts, std::move(lines)), [&](std::exception_ptr error) {
      ended = !error;
      io.stop();
    });
    test::run_within(io, std::chrono::seconds(10));
    REQUIRE(ended);
  }

  awaitable<void> play(ShellHosts& hosts, std::vector<std::string> lines) {
    co_await hosts.connect();
    for (const std::string& line : lines) {
      FoldSink fold(true);
      std::vector<std::size_t> all;
      for (std::size_t index = 0; index < hosts.size(); ++index) all.push_back(index);
      const auto outcomes = co_await hosts.run(line, all, fold);
      codes.push_back(exec_exit_code(outcomes, std::nullopt));
      while (const auto piece = fold.next_piece()) shown += *piece;
    }
    co_await hosts.leave();
  }

  test::ScopedTempDir dir;
  boost::asio::io_context io{1};
  test::FakeTransport transport{io.get_executor()};
  config::RunnerConfig runner;
  std::vector<std::string> hosts_named;
  std::vector<int> codes;
  std::string shown, gone;
};

/// Parts of an order: the text between the quotes of `eval '...'`, and the mark.
struct Order {
  std::string mark, line;
};
std::optional<Order> take_order(std::string& heard) {
  const std::size_t eval = heard.find("eval '");
  const std::size_t end = heard.find("%d\\n' ", eval);
  if (eval == heard.npos || end == heard.npos || heard.find('\n', end) == heard.npos) return {};
  const std::size_t line = eval + 6;
  std::istringstream words(heard.substr(end + 6));
  std::string first, second;
  words >> first >> second;
  Order order{"\x1e" + first + second, heard.substr(line, heard.find("'; }", line) - line)};
  heard.clear();
  return order;
}

/// A shell: `status N` ends with status N, `cut HOST` breaks the connection of HOST, `freeze HOST`
/// makes HOST send nothing more, `end` ends the shell, any other line is printed.
awaitable<void> a_shell(FakeRunner& runner) {
  const bool started = co_await runner.autostart();
  if (!started) co_return;
  std::string heard;
  for (;;) {
    const std::optional<wire::Message> message = co_await runner.next();
    if (!message) co_return;
    const auto* input = std::get_if<wire::Input>(&*message);
    if (input == nullptr) continue;
    if (input->eof != 0) break;
    runner.send(wire::InputCredit{input->bytes.size(), 0});
    heard += input->bytes;
    const std::optional<Order> order = take_order(heard);
    if (!order) continue;
    int status = 0;
    std::string said = order->line == ":" ? "" : order->line + "\n";
    if (order->line.starts_with("status ")) status = std::stoi(order->line.substr(7));
    runner.send(wire::Output{0, wire::Stream::err, "noise" + order->mark + "<"});
    runner.send(wire::Output{0, wire::Stream::out, "noise" + order->mark + "<" + said});
    if (order->line == "cut " + runner.host()) {
      runner.cut("broken");
      co_return;
    }
    if (order->line == "freeze " + runner.host()) {
      runner.freeze();
      continue;
    }
    if (order->line == "end") {
      runner.exit_rank(0, 3);
      break;
    }
    runner.send(wire::Output{0, wire::Stream::err, order->mark + ">\n"});
    runner.send(
        wire::Output{0, wire::Stream::out, order->mark + ">" + std::to_string(status) + "\n"});
  }
  co_await runner.finish(false);
}

TEST_CASE("lines run on all hosts, folded; one that goes is named and the others go on") {
  Prompted prompt({"a", "b", "c"});
  for (const char* name : {"a", "b", "c"}) prompt.transport.host(name).script = a_shell;
  prompt.run({"hello", "status 7", "cut b", "again"});
  CHECK(prompt.codes == std::vector<int>{0, 7, 5, 0});
  CHECK(test::contains(prompt.shown, "==> a,b,c (3)\nhello\n"));
  CHECK(test::contains(prompt.shown, "==> a,b,c (3): exit code 7\nstatus 7\n"));
  CHECK(test::contains(prompt.shown, "==> a,c (2)\ncut b\n"));
  CHECK(test::contains(prompt.shown, "==> a,c (2)\nagain\n"));
  CHECK(test::contains(prompt.gone, "b in line: broken"));
  CHECK(test::count_of(prompt.gone, "\n") == 1);
}

TEST_CASE("a host that says nothing more: its shell ends, and there are no ranks") {
  Prompted prompt({"a"});
  prompt.runner.heartbeat_interval = std::chrono::milliseconds(50);
  prompt.runner.heartbeat_timeout = std::chrono::milliseconds(400);
  prompt.transport.host("a").script = a_shell;
  prompt.run({"freeze a"});
  CHECK(test::contains(prompt.gone, "a in line: no heartbeat for "));
  CHECK(test::contains(prompt.gone, "; its shell ends by itself\n"));
}

TEST_CASE("a shell that ends takes its host out of the prompt") {
  Prompted prompt({"a", "b"});
  for (const char* name : {"a", "b"}) prompt.transport.host(name).script = a_shell;
  prompt.run({"end", "nobody"});
  CHECK(prompt.codes == std::vector<int>{3, 0});
  CHECK(test::contains(prompt.gone, "a in line: its shell has ended: exit code 3\n"));
  CHECK(test::contains(prompt.gone, "b in line: its shell has ended: exit code 3\n"));
  CHECK_FALSE(prompt.shown.contains("nobody"));
}

}  // namespace
}  // namespace sortie::launcher
