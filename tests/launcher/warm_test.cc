// Connections that are kept for later commands.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include "launcher/ssh/connection_key.h"
#include "tests/launcher/warm_world.h"
#include "tests/support/patience.h"

namespace sortie::launcher::warm {
namespace {

TEST_CASE("the second command finds the connection and the runner of the first") {
  WarmWorld world;
  {
    const auto first = world.command();
    world.talk(*first, "h1")->close();  // closes like `check`, without Goodbye
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
    // Without kept connections the transport has to resolve this name.
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
  // The keeper notices the exit at once: the runner is not offered again.
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
  const std::string said = world.answer_to([] {
    return close_connections({"h1", "h2", "h3"}).value();
  });
  CHECK(said == "1 connection closed\n1 in use: closed when its command or session ends\n");
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
  request.want.environment.variables = {{"KRB5CCNAME", "FILE:/tmp/\xff"}, {"EMPTY", ""}};
  const std::string frame = request_frame(request);
  const auto back = read_request(frame.substr(wire::kFrameHeaderBytes));
  REQUIRE(back);
  CHECK(back->want.ssh.identity_file == request.want.ssh.identity_file);
  CHECK(back->want.ssh.persist == request.want.ssh.persist);
  CHECK(back->want.ssh.control == "no");
  CHECK(back->want.environment.user == request.want.environment.user);
  CHECK(back->want.environment.variables == request.want.environment.variables);
  CHECK_FALSE(read_request("{\"op\":\"want\"}"));
  CHECK_FALSE(read_request("{"));
}

}  // namespace
}  // namespace sortie::launcher::warm
