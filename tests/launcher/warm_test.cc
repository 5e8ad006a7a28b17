// Connections that are kept: the background process's part and a command's part in one thread, with
// real runners on this machine instead of SSH.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

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
#include "launcher/warm/warm_transport.h"
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

/// Counts the connections that are made.
class CountedTransport : public Transport {
 public:
  CountedTransport(asio::any_io_executor executor, int& count)
      : local_(make_local_transport(std::move(executor))), count_(count) {}
  asio::awaitable<Result<std::unique_ptr<Connection>>> connect(std::string host) override {
    ++count_;
    return local_->connect(std::move(host));
  }

 private:
  std::unique_ptr<Transport> local_;
  int& count_;
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
  int connected = 0;
  std::shared_ptr<Keeper> keeper = std::make_shared<Keeper>(
      Keeper::Parts{io.get_executor(), binary, build,
                    [this](const Want&) {
                      return std::make_unique<CountedTransport>(io.get_executor(), connected);
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
  CHECK(Clock::now() - begin < test::patient(seconds(8)));
  ::kill(stopped, SIGKILL);
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
  CHECK(*said == "1 connection closed\n1 in use: closed when its command ends\n");
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
