// runner.transport: any program that runs a command on a host. Here `env`, which runs it on this
// machine.
#include "launcher/ssh/argv_transport.h"

#include <doctest/doctest.h>

#include <csignal>

#include "tests/launcher/ssh/fixture.h"

using namespace sortie;
using namespace sortie::launcher;
using namespace sortie::launcher::testing;

namespace {

struct TemplateWorld {
  boost::asio::io_context io;
  config::SshConfig limits;

  Result<std::unique_ptr<Connection>> connect(std::vector<std::string> words,
                                              const std::string& host = "h7") {
    transport = make_argv_transport(io.get_executor(), std::move(words), limits);
    return finish(io, transport->connect(host));
  }
  std::unique_ptr<Transport> transport;
};

}  // namespace

TEST_SUITE("launcher") {
  TEST_CASE("runner.transport: every {host} is the host's name, and no shell reads a word") {
    CHECK(template_words({"docker", "exec", "-i", "{host}"}, "h1") ==
          std::vector<std::string>{"docker", "exec", "-i", "h1"});
    CHECK(template_words({"x", "--at={host},{host}/", "{hos}", "$(id)"}, "{host}") ==
          std::vector<std::string>{"x", "--at={host},{host}/", "{hos}", "$(id)"});
  }

  TEST_CASE("runner.transport: commands, their output and status, several on one connection") {
    TemplateWorld world;
    // As with srun, the variables of this machine are inherited and do not describe the host.
    auto connection =
        world.connect({"env", "SSH_CONNECTION=192.0.2.1 1 192.0.2.2 22", "AT=<{host}>"});
    REQUIRE_MESSAGE(connection, (connection ? "" : connection.error().message));
    CHECK((*connection)->peer_address().empty());
    for (const int code : {0, 7}) {
      auto channel =
          finish(world.io,
                 (*connection)->exec("echo \"$AT\"; echo two >&2; exit " + std::to_string(code)));
      REQUIRE(channel);
      const auto ran = finish(world.io, World::read_all(**channel));
      REQUIRE(ran);
      CHECK(ran->output == "<h7>\n");
      CHECK(ran->status.code == code);
      CHECK((*channel)->stderr_tail() == "two\n");
    }
  }

  TEST_CASE("runner.transport: whole both ways, and the program ends with its channel") {
    TemplateWorld world;
    auto connection = world.connect({"env", "AT={host}"});
    REQUIRE(connection);
    auto channel = finish(world.io, (*connection)->exec("echo $$; exec cat"));
    REQUIRE(channel);
    std::string got;
    std::array<char, 65536> buffer;
    const auto read = [&](std::size_t size) {
      while (got.size() < size) {
        const auto count = finish(world.io, (*channel)->read_some(buffer));
        REQUIRE(count);
        REQUIRE(*count > 0);
        got.append(buffer.data(), *count);
      }
    };
    read(2);
    const pid_t pid = std::stoi(got);
    got.clear();
    const std::string sent(1 << 20, 's');
    boost::asio::co_spawn(world.io, (*channel)->write(sent), [](std::exception_ptr, Result<>) {});
    read(sent.size());
    CHECK(got == sent);
    (*channel)->close();
    (*connection)->close();
    world.io.restart();
    for (int i = 0; i < 1500 && ::kill(pid, 0) == 0; ++i) world.io.run_for(20ms);
    CHECK(::kill(pid, 0) != 0);
  }

  TEST_CASE("runner.transport: failures say what the program said") {
    TemplateWorld world;
    const auto failure = [&](std::vector<std::string> words) {
      const auto connection = world.connect(std::move(words));
      REQUIRE_FALSE(connection);
      return connection.error();
    };
    const Error missing = failure({"no-such-program", "{host}"});
    CHECK(missing.code == ErrorCode::config);
    CHECK(missing.message.starts_with("runner.transport: start no-such-program: "));
    const Error refused = failure({"sh", "-c", "echo no container {host} >&2; exit 3", "{host}"});
    CHECK(refused.code == ErrorCode::connect);
    CHECK(
        refused.message ==
        "runner.transport: sh ended (exit code 3) before the host answered; it said: no container "
        "h7; run it by hand with the command `true`");
    world.limits.resolve_timeout = world.limits.connect_timeout = world.limits.handshake_timeout =
        world.limits.auth_timeout = 1000ms;
    const Error silent = failure({"sh", "-c", "echo password: >&2; exec sleep 100", "{host}"});
    CHECK(silent.code == ErrorCode::handshake);
    CHECK(silent.message.contains("not connected within 4000 ms"));
    CHECK(silent.message.contains("it printed: password:; see"));
    world.limits.resolve_timeout = world.limits.connect_timeout = world.limits.handshake_timeout =
        world.limits.auth_timeout = 100ms;
    CHECK(failure({"sh", "-c", "exec sleep 100", "{host}"})
              .message.contains("it printed nothing; see whether it waits for an answer"));
    const Error both =
        failure({"sh", "-c", "echo code?; sleep 0.1; echo bad >&2; exec sleep 100", "{host}"});
    CHECK_MESSAGE(both.message.contains("it printed: code? | bad; see"), both.message);
  }
}
