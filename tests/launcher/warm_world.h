// Kept connections, for tests: the background process and a command in one thread, with real
// runners on this machine instead of SSH.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "launcher/host/runner_client.h"
#include "launcher/local/local_transport.h"
#include "launcher/warm/connections_command.h"
#include "launcher/warm/keeper.h"
#include "launcher/warm/place.h"
#include "launcher/warm/warm_terminal.h"
#include "launcher/warm/warm_transport.h"
#include "tests/support/fake_hosts.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temp_dir.h"

namespace sortie::launcher::warm {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

inline fs::path runner_file() {
  return fs::path(SORTIE_BINARY).parent_path() / "sortie-runner";
}

/// Runners with --serve that are children of this process.
inline std::vector<pid_t> kept_runners() {
  std::vector<pid_t> pids;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    const std::string stat = test::read_text(entry.path() / "stat");
    const std::string words = test::read_text(entry.path() / "cmdline");
    const auto name_end = stat.rfind(')');
    if (pid > 0 && name_end != stat.npos && words.contains("--serve") &&
        std::atoi(stat.c_str() + name_end + 4) == ::getpid())
      pids.push_back(pid);
  }
  return pids;
}

/// A session that echoes its input to `out` until the input ends.
struct FakeTerminal {
  explicit FakeTerminal(const asio::any_io_executor& executor)
      : out(executor), err(executor), closing(executor, Clock::time_point::max()) {}
  test::ByteStream out, err;
  std::string typed;
  TerminalRequest asked;
  WindowSize size;
  bool stuck = false;  // accepts no input
  bool closed = false;
  asio::steady_timer closing;  // cancelled when it is closed
};
class FakeTerminalChannel : public TerminalChannel {
 public:
  explicit FakeTerminalChannel(std::shared_ptr<FakeTerminal> of) : of_(std::move(of)) {}
  ~FakeTerminalChannel() override { FakeTerminalChannel::close(); }
  asio::awaitable<Result<std::size_t>> read_some(Output output, std::span<char> buffer) override {
    return output == Output::out ? of_->out.read(buffer) : of_->err.read(buffer);
  }
  asio::awaitable<Result<>> write(std::string_view bytes) override {
    of_->typed += bytes;
    while (of_->stuck && !of_->closed) co_await of_->closing.async_wait(kToken);
    if (of_->closed) co_return fail(ErrorCode::lost, "closed");
    of_->out.put(bytes);
    co_return Result<>{};
  }
  void end_input() override {
    of_->err.put("over");
    of_->out.end();
    of_->err.end();
  }
  void resize(WindowSize size) override { of_->size = size; }
  asio::awaitable<Result<ProcessStatus>> wait() override {
    co_return ProcessStatus{ProcessStatus::Kind::exited, 7, false};
  }
  void close() override {
    of_->closed = true;
    of_->closing.cancel();
    of_->out.fail("closed");
    of_->err.fail("closed");
  }

 private:
  std::shared_ptr<FakeTerminal> of_;
};

/// Shared by all connections of a test.
struct Counted {
  int connections = 0;
  bool terminals = true;  // connections accept terminals
  std::shared_ptr<FakeTerminal> terminal;
};

class CountedConnection : public Connection, public TerminalWay {
 public:
  CountedConnection(asio::any_io_executor executor, std::unique_ptr<Connection> local,
                    Counted& counted)
      : executor_(std::move(executor)), local_(std::move(local)), counted_(counted) {}
  asio::awaitable<Result<std::unique_ptr<Channel>>> exec(std::string command) override {
    return local_->exec(std::move(command));
  }
  std::string peer_address() const override { return local_->peer_address(); }
  void close() override { local_->close(); }
  asio::awaitable<Result<std::unique_ptr<TerminalChannel>>> open_terminal(
      TerminalRequest request) override {
    if (!counted_.terminals) co_return fail(ErrorCode::channel, "no more sessions");
    counted_.terminal = std::make_shared<FakeTerminal>(executor_);
    counted_.terminal->asked = std::move(request);
    co_return std::make_unique<FakeTerminalChannel>(counted_.terminal);
  }

 private:
  asio::any_io_executor executor_;
  std::unique_ptr<Connection> local_;
  Counted& counted_;
};

class CountedTransport : public Transport {
 public:
  CountedTransport(asio::any_io_executor executor, Counted& counted)
      : executor_(executor), local_(make_local_transport(executor)), counted_(counted) {}
  asio::awaitable<Result<std::unique_ptr<Connection>>> connect(std::string host) override {
    ++counted_.connections;
    auto local = co_await local_->connect(std::move(host));
    if (!local) co_return local;
    co_return std::make_unique<CountedConnection>(executor_, std::move(*local), counted_);
  }

 private:
  asio::any_io_executor executor_;
  std::unique_ptr<Transport> local_;
  Counted& counted_;
};

struct WarmWorld {
  test::ScopedTempDir dir;
  test::ScopedVariable home{"HOME", dir.str("home")};
  test::ScopedVariable runtime{"XDG_RUNTIME_DIR",
                               (fs::create_directory(dir / "run"), dir.str("run"))};
  asio::io_context io{1};
  RunnerBinary binary = std::move(RunnerBinary::open(runner_file()).value());
  std::string build = build_of(binary.sha256());
  Place place = std::move(Place::open().value());
  Fd lock = std::move(place.lock(build).value());
  Counted counted;
  int& connected = counted.connections;
  std::shared_ptr<Keeper> keeper = std::make_shared<Keeper>(
      Keeper::Parts{io.get_executor(), binary, build,
                    [this](const Want&) {
                      return std::make_unique<CountedTransport>(io.get_executor(), counted);
                    },
                    milliseconds(0)});
  asio::local::stream_protocol::acceptor acceptor{io, asio::local::stream_protocol(),
                                                  place.listen(build).value().release()};
  config::RunnerConfig runner;

  WarmWorld() {
    runner.ssh.persist = seconds(60);
    fs::create_directory(dir / "home");
    spawn(io, accept());
  }
  ~WarmWorld() {
    acceptor.close();
    keeper->close_all();
    settle(milliseconds(50));
  }
  asio::awaitable<void> accept() {
    for (;;) {
      auto [error, socket] = co_await acceptor.async_accept(kToken);
      if (error) co_return;
      spawn(io, keeper->serve(std::make_shared<Keeper::Socket>(std::move(socket))));
    }
  }
  std::unique_ptr<Transport> command() {
    return make_warm_transport(
        {io.get_executor(), runner, binary.sha256(), binary.path(), "/nonexistent"});
  }
  template <class T>
  T finish(asio::awaitable<T> work) {
    std::optional<T> done;
    asio::co_spawn(io, std::move(work), [&](std::exception_ptr error, T result) {
      CHECK_FALSE(error);
      done = std::move(result);
    });
    io.restart();
    const auto until = Clock::now() + seconds(20);
    while (!done && Clock::now() < until) io.run_one_for(milliseconds(100));
    REQUIRE(done);
    return std::move(*done);
  }
  void settle(milliseconds time) {
    io.restart();
    io.run_for(time);
  }
  /// Runs until `condition` is true; false after 10 s.
  bool until(const std::function<bool()>& condition) {
    const auto limit = Clock::now() + seconds(10);
    while (!condition() && Clock::now() < limit) settle(milliseconds(5));
    return condition();
  }
  /// Greets the runner of `host` as a command does. The returned client keeps the connection in
  /// use.
  std::unique_ptr<RunnerClient> talk(Transport& transport, const std::string& host) {
    auto connection = finish(transport.connect(host));
    REQUIRE_MESSAGE(connection, connection.error().message);
    auto channel = finish(start_runner(**connection, binary));
    REQUIRE_MESSAGE(channel, channel.error().message);
    auto client = std::make_unique<RunnerClient>(std::move(*channel));
    const auto greeted = finish(client->greet(binary.sha256()));
    CHECK_MESSAGE(greeted, greeted.error().message);
    return client;
  }
  std::unique_ptr<TerminalChannel> terminal(const std::string& host) {
    return finish(open_kept_terminal(io.get_executor(), runner, binary.sha256(), host,
                                     {"vi x", true, "vt220", {97, 31}}));
  }
  bool has_terminal(const std::string& host) { return terminal(host) != nullptr; }
  /// All bytes of an output until its end.
  Result<std::string> all_of(TerminalChannel& channel, TerminalChannel::Output output) {
    const auto read = [&]() -> asio::awaitable<Result<std::string>> {
      std::string all;
      std::array<char, 5> buffer;
      for (;;) {
        const auto count = co_await channel.read_some(output, buffer);
        if (!count) co_return std::unexpected(count.error());
        if (*count == 0) co_return all;
        all.append(buffer.data(), *count);
      }
    };
    return finish(read());
  }
  /// Uses the host as a command does, so that its connection is kept.
  void warm_up(const std::string& host) {
    const auto first = command();
    talk(*first, host)->close();
    REQUIRE(all_idle(1));
  }
  /// The result of a blocking question, asked by another thread while this one serves it.
  template <class Question>
  std::string answer_to(Question question) {
    auto answer = std::async(std::launch::async, std::move(question));
    CHECK(until([&] { return answer.wait_for(seconds(0)) == std::future_status::ready; }));
    return answer.get();
  }
  nlohmann::json connections() {
    return nlohmann::json::parse(answer_to([] { return list_connections(true).value(); }))
        .at("connections");
  }
  bool all_idle(std::size_t count) {
    return until([&] {
      const auto all = connections();
      return all.size() == count &&
             std::ranges::all_of(all, [](const auto& one) { return one["state"] == "idle"; });
    });
  }
};

}  // namespace sortie::launcher::warm
