// Connections that are kept: the background process's part and a command's part in one thread, with
// real runners on this machine instead of SSH.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "launcher/host/runner_client.h"
#include "launcher/local/local_transport.h"
#include "launcher/ssh/connection_key.h"
#include "launcher/warm/connections_command.h"
#include "launcher/warm/keeper.h"
#include "launcher/warm/place.h"
#include "launcher/warm/terminal_words.h"
#include "launcher/warm/warm_terminal.h"
#include "launcher/warm/warm_transport.h"
#include "tests/support/fake_hosts.h"
#include "tests/support/patience.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temp_dir.h"

namespace sortie::launcher::warm {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

fs::path runner_file() {
  return fs::path(SORTIE_BINARY).parent_path() / "sortie-runner";
}

/// Runners of this process that stay: its children.
std::vector<pid_t> kept_runners() {
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

/// A session that says what it is told, on `out`, until its input ends.
struct FakeTerminal {
  explicit FakeTerminal(const asio::any_io_executor& executor)
      : out(executor), err(executor), closing(executor, Clock::time_point::max()) {}
  test::ByteStream out, err;
  std::string typed;
  TerminalRequest asked;
  WindowSize size;
  bool stuck = false;  // it takes no input
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

/// What connections of a test have in common.
struct Counted {
  int connections = 0;
  bool terminals = true;  // they carry some
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
  /// Runs until `condition`; false: not within 10 s.
  bool until(const std::function<bool()>& condition) {
    const auto limit = Clock::now() + seconds(10);
    while (!condition() && Clock::now() < limit) settle(milliseconds(5));
    return condition();
  }
  /// A command that greets the runner of `host`; its connection, which is still in use.
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
  /// What an output has said when it has ended.
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
  /// A command has used the host; its connection is kept.
  void warm_up(const std::string& host) {
    const auto first = command();
    talk(*first, host)->close();
    REQUIRE(all_idle(1));
  }
  nlohmann::json connections() {
    std::optional<std::string> text;
    // The question is a blocking one: another thread asks while this one serves.
    std::thread asker([&] { text = list_connections(true).value(); });
    CHECK(until([&] { return text.has_value(); }));
    asker.join();
    return nlohmann::json::parse(*text).at("connections");
  }
  bool all_idle(std::size_t count) {
    return until([&] {
      const auto all = connections();
      return all.size() == count &&
             std::ranges::all_of(all, [](const auto& one) { return one["state"] == "idle"; });
    });
  }
};

TEST_CASE("the second command finds the connection and the runner of the first") {
  WarmWorld world;
  {
    const auto first = world.command();
    world.talk(*first, "h1")->close();  // as `check` goes: without Goodbye
  }
  REQUIRE(world.all_idle(1));
  CHECK(world.connected == 1);
  const auto second = world.command();
  const auto client = world.talk(*second, "h1");
  CHECK(world.connected == 1);
  const std::string goodbye = wire::encode(wire::Goodbye{});
  CHECK(world.finish(client->write(goodbye)));
  const auto rest = world.finish(client->receive());
  CHECK_FALSE(rest);
  CHECK(client->at_end());
  CHECK(world.all_idle(1));
  const auto shown = world.connections().at(0);
  CHECK(shown["host"] == "h1");
  CHECK(shown["address"].get<std::string>().ends_with("@h1:22"));
  CHECK(shown["bytes"].get<int>() > 100);
  CHECK(shown["ends_in_s"].get<double>() > 50);
}

TEST_CASE("a connection that brought its runner is not kept by the command: it can have no other") {
  WarmWorld world;
  TransportRouter router(world.command(), make_local_transport(world.io.get_executor()),
                         seconds(5));
  for (int attempt = 0; attempt < 2; ++attempt) {
    auto connection = world.finish(router.connect("h1"));
    REQUIRE(connection);
    auto channel = world.finish(start_runner(**connection, world.binary));
    REQUIRE_MESSAGE(channel, channel.error().message);
    (*channel)->close();
    (*connection)->release();
    CHECK(router.idle() == 0);
  }
}

TEST_CASE("a run uses kept connections where its ranks outlive one") {
  WarmWorld world;
  for (const std::string held : {"kill", "hold 30s"}) {
    CAPTURE(held);
    world.runner.on_launcher_loss = held;
    world.runner.ssh.control = "no";
    world.runner.ssh.connect_timeout = milliseconds(300);
    const auto transport = make_run_transport(world.io.get_executor(), world.runner, world.binary);
    // By itself it looks for a host of that name.
    const auto connection = world.finish(transport->connect("h1.invalid"));
    CHECK(connection.has_value() == (held != "kill"));
  }
}

TEST_CASE("two commands at once have two runners on one connection; one of them stays") {
  WarmWorld world;
  const auto one = world.command(), other = world.command();
  const auto first = world.talk(*one, "h1");
  const auto second = world.talk(*other, "h1");
  CHECK(world.connected == 1);
  CHECK(world.connections().size() == 2);
  first->close();
  second->close();
  CHECK(world.all_idle(1));
}

TEST_CASE("another user, key file or port is another connection") {
  WarmWorld world;
  world.talk(*world.command(), "h1")->close();
  world.runner.ssh.user = "somebody";
  world.talk(*world.command(), "h1")->close();
  CHECK(world.connected == 2);
  world.talk(*world.command(), "h1:2222")->close();
  CHECK(world.connected == 3);
  test::write_text(world.dir / "key", "first");
  world.runner.ssh.identity_file = world.dir.str("key");
  world.talk(*world.command(), "h1")->close();
  CHECK(world.connected == 4);
  test::write_text(world.dir / "key", "another");
  world.talk(*world.command(), "h1")->close();
  CHECK(world.connected == 5);
}

TEST_CASE("a runner that was killed while it was idle is replaced") {
  WarmWorld world;
  world.talk(*world.command(), "h1")->close();
  REQUIRE(world.all_idle(1));
  // Its end is seen at once: it is not offered again.
  REQUIRE(kept_runners().size() == 1);
  ::kill(kept_runners().front(), SIGKILL);
  world.talk(*world.command(), "h1")->close();
  CHECK(world.connected == 2);
}

TEST_CASE("a runner that does not answer any more costs a moment, and is replaced") {
  WarmWorld world;
  world.talk(*world.command(), "h1")->close();
  REQUIRE(world.all_idle(1));
  REQUIRE(kept_runners().size() == 1);
  const pid_t stopped = kept_runners().front();
  ::kill(stopped, SIGSTOP);
  const auto begin = Clock::now();
  world.talk(*world.command(), "h1")->close();
  CHECK(world.connected == 2);
  CHECK(Clock::now() - begin < test::patient(seconds(15)));
  ::kill(stopped, SIGKILL);
}

TEST_CASE("a runner of a host that may be silent for long is waited for") {
  WarmWorld world;
  world.runner.heartbeat_timeout = seconds(120);
  world.talk(*world.command(), "h1")->close();
  REQUIRE(world.all_idle(1));
  REQUIRE(kept_runners().size() == 1);
  const pid_t stopped = kept_runners().front();
  ::kill(stopped, SIGSTOP);
  std::jthread later([stopped] {
    std::this_thread::sleep_for(milliseconds(2500));
    ::kill(stopped, SIGCONT);
  });
  world.talk(*world.command(), "h1")->close();
  later.join();
  CHECK(world.connected == 1);
}

TEST_CASE("what is kept ends with its time; then there is nothing left to do") {
  WarmWorld world;
  world.runner.ssh.persist = milliseconds(300);
  CHECK_FALSE(world.keeper->look());
  world.talk(*world.command(), "h1")->close();
  REQUIRE(world.all_idle(1));
  CHECK(world.until([&] { return !world.keeper->look(); }));
  CHECK(world.connections().empty());
}

TEST_CASE("close ends idle connections, and used ones with their command") {
  WarmWorld world;
  const auto transport = world.command();
  world.talk(*transport, "h1")->close();
  const auto used = world.talk(*transport, "h2");
  REQUIRE(world.until([&] { return world.connections().at(0)["state"] == "idle"; }));
  std::optional<std::string> said;
  std::thread asker([&] { said = close_connections({"h1", "h2", "h3"}).value(); });
  CHECK(world.until([&] { return said.has_value(); }));
  asker.join();
  CHECK(*said == "1 connection closed\n1 in use: closed when its command or session ends\n");
  used->close();
  CHECK(world.until([&] { return world.connections().empty(); }));
}

TEST_CASE("another build's process ends when it is told to, and serves nobody of this one") {
  WarmWorld world;
  world.talk(*world.command(), "h1")->close();
  REQUIRE(world.all_idle(1));
  Request request;
  request.kind = Request::Kind::retire;
  const Fd socket = world.place.connect(world.build).value();
  const std::string frame = request_frame(request);
  REQUIRE(::write(socket.get(), frame.data(), frame.size()) > 0);
  CHECK(world.until([&] { return !world.keeper->look(); }));
}

TEST_CASE("a folder that others may enter is refused") {
  test::ScopedTempDir dir;
  const test::ScopedVariable runtime("XDG_RUNTIME_DIR", dir.path().string());
  REQUIRE(Place::open());
  ::chmod(dir.str("sortie").c_str(), 0755);
  const auto place = Place::open();
  REQUIRE_FALSE(place);
  CHECK(place.error().message.contains("no other user may enter"));
}

TEST_CASE("a person's session on a kept connection: input, size of the window, outputs, status") {
  WarmWorld world;
  CHECK_FALSE(world.has_terminal("h1"));  // nothing is kept yet, and that keeps nothing
  CHECK(world.connected == 0);
  world.warm_up("h1");
  const auto channel = world.terminal("h1");
  REQUIRE(channel != nullptr);
  CHECK(world.connected == 1);
  const std::shared_ptr<FakeTerminal> there = world.counted.terminal;
  CHECK(there->asked.command == "vi x");
  CHECK(there->asked.terminal);
  CHECK(there->asked.term == "vt220");
  CHECK(there->asked.size == WindowSize{97, 31});
  channel->resize({55, 44});
  const std::string typed(300'000, 'x');
  CHECK(world.finish(channel->write(typed)));
  CHECK(world.until([&] { return there->typed.size() == typed.size(); }));
  CHECK(there->size == WindowSize{55, 44});
  const auto rows = world.connections();
  REQUIRE(rows.size() == 2);
  CHECK(rows.at(0)["state"] == "idle");
  CHECK(rows.at(1)["state"] == "terminal");
  CHECK(rows.at(1)["host"] == "h1");
  CHECK(rows.at(1)["bytes"] >= typed.size());
  CHECK(rows.at(1)["idle_s"] >= 0.0);
  channel->end_input();
  CHECK(world.all_of(*channel, TerminalChannel::Output::out) == typed);
  CHECK(world.all_of(*channel, TerminalChannel::Output::err) == "over");
  const auto status = world.finish(channel->wait());
  REQUIRE(status);
  CHECK(status->kind == ProcessStatus::Kind::exited);
  CHECK(status->code == 7);
  CHECK(world.until([&] { return there->closed; }));
  CHECK(world.all_idle(1));
  CHECK_FALSE(world.has_terminal("h2"));
  CHECK(world.connected == 1);
}

TEST_CASE("a person who goes takes the session along, and the connection stays") {
  WarmWorld world;
  world.warm_up("h1");
  auto channel = world.terminal("h1");
  REQUIRE(channel != nullptr);
  channel.reset();
  CHECK(world.until([&] { return world.counted.terminal->closed; }));
  CHECK(world.all_idle(1));
  CHECK(world.has_terminal("h1"));
}

TEST_CASE("a person who goes while the host takes no input takes the session along, too") {
  WarmWorld world;
  world.warm_up("h1");
  auto channel = world.terminal("h1");
  REQUIRE(channel != nullptr);
  const auto there = world.counted.terminal;
  there->stuck = true;
  CHECK(world.finish(channel->write("typed ahead")));
  CHECK(world.until([&] { return !there->typed.empty(); }));
  channel.reset();
  CHECK(world.until([&] { return there->closed; }));
  CHECK(world.all_idle(1));
}

TEST_CASE("a session whose connection breaks says so") {
  WarmWorld world;
  world.warm_up("h1");
  auto channel = world.terminal("h1");
  REQUIRE(channel != nullptr);
  world.counted.terminal->out.fail("the link is down");
  world.counted.terminal->err.fail("the link is down");
  const auto said = world.all_of(*channel, TerminalChannel::Output::out);
  REQUIRE_FALSE(said);
  CHECK(said.error().code == ErrorCode::lost);
  CHECK(said.error().message.contains("the link is down"));
  CHECK_FALSE(world.finish(channel->wait()));
}

TEST_CASE("a connection that carries no further session: the host is signed in to") {
  WarmWorld world;
  world.warm_up("h1");
  world.counted.terminals = false;
  CHECK_FALSE(world.has_terminal("h1"));
  CHECK(world.all_idle(1));
}

TEST_CASE("a connection stays as long as a session on it, when its time is over, too") {
  WarmWorld world;
  world.runner.ssh.persist = milliseconds(1);
  const auto first = world.command();
  const auto client = world.talk(*first, "h1");  // in use
  const auto channel = world.terminal("h1");
  REQUIRE(channel != nullptr);
  client->close();
  CHECK(world.until([&] {
    world.keeper->look();
    const auto rows = world.connections();  // the runner has gone, the session is named
    return rows.size() == 1 && rows.at(0)["state"] == "terminal";
  }));
  CHECK_FALSE(world.counted.terminal->closed);
  channel->end_input();
  const auto status = world.finish(channel->wait());
  CHECK(status);
  CHECK(world.until([] { return kept_runners().empty(); }));
}

TEST_CASE("words of a session") {
  const std::string frame = resize_word({300, 5});
  CHECK(read_resize(std::string_view(frame).substr(wire::kFrameHeaderBytes)) == WindowSize{300, 5});
  CHECK_FALSE(read_resize("abc"));
  Request request;
  request.kind = Request::Kind::terminal;
  request.want.key = "k";
  request.terminal = {"echo \xff", false, "xterm", {80, 24}};
  const auto back = read_request(request_frame(request).substr(wire::kFrameHeaderBytes));
  REQUIRE(back);
  CHECK(back->kind == Request::Kind::terminal);
  CHECK(back->want.key == "k");
  CHECK(back->terminal.command == "echo \xff");
  CHECK_FALSE(back->terminal.terminal);
  CHECK(back->terminal.size == WindowSize{80, 24});
  CHECK_FALSE(read_request(R"({"op":"terminal"})"));
}

TEST_CASE("a request goes through JSON unchanged, also with bytes that are no UTF-8") {
  Request request;
  request.kind = Request::Kind::want;
  request.want.host = "h1";
  request.want.ssh.identity_file = "/home/\xff\xe4/key";
  request.want.ssh.persist = seconds(9);
  request.want.ssh.control = "no";
  request.want.environment.user = "j\xc3\xb6rg";
  const std::string frame = request_frame(request);
  const auto back = read_request(frame.substr(wire::kFrameHeaderBytes));
  REQUIRE(back);
  CHECK(back->want.ssh.identity_file == request.want.ssh.identity_file);
  CHECK(back->want.ssh.persist == request.want.ssh.persist);
  CHECK(back->want.ssh.control == "no");
  CHECK(back->want.environment.user == request.want.environment.user);
  CHECK_FALSE(read_request("{\"op\":\"want\"}"));
  CHECK_FALSE(read_request("{"));
}

}  // namespace
}  // namespace sortie::launcher::warm
