// Interactive sessions over a real sshd: the remote terminal, its size and TERM, separate outputs,
// exit.
#include <doctest/doctest.h>

#include "launcher/host/terminal_channel.h"
#include "tests/launcher/ssh/fixture.h"

namespace sortie::launcher {
namespace {

namespace asio = boost::asio;
using namespace sortie::testing;
using namespace sortie::launcher::testing;

struct TerminalWorld : World {
  TerminalWorld() : server(folder / "sshd", public_key, {}) {
    know(server.known_hosts_line());
    connection = connect_to(server);
  }
  Sshd server;
  std::unique_ptr<Connection> connection;
};

/// Output of a session, and how it ended.
struct Said {
  std::string out, err;
  Result<ProcessStatus> status = fail(ErrorCode::internal, "not run");
};

asio::awaitable<void> drain(TerminalChannel& channel, TerminalChannel::Output output,
                            std::string& into, std::string until) {
  char buffer[4096];
  while (until.empty() || !into.contains(until)) {
    const auto count = co_await channel.read_some(output, buffer);
    if (!count || *count == 0) co_return;
    into.append(buffer, *count);
  }
}

asio::awaitable<Said> say(Connection& connection, TerminalRequest request, std::string input) {
  Said said;
  auto channel = co_await open_terminal(connection, std::move(request));
  if (!channel) {
    said.status = std::unexpected(channel.error());
    co_return said;
  }
  const auto sent = co_await (*channel)->write(input);
  if (!sent) said.err = sent.error().message;
  (*channel)->end_input();
  co_await drain(**channel, TerminalChannel::Output::out, said.out, "");
  co_await drain(**channel, TerminalChannel::Output::err, said.err, "");
  said.status = co_await (*channel)->wait();
  co_return said;
}

asio::awaitable<Said> resized(Connection& connection) {
  Said said;
  TerminalRequest request{
      "stty size; echo $TERM; read x; stty size; exit 9", true, "vt220", {101, 33}};
  auto channel = co_await open_terminal(connection, std::move(request));
  if (!channel) {
    said.status = std::unexpected(channel.error());
    co_return said;
  }
  co_await drain(**channel, TerminalChannel::Output::out, said.out, "vt220\r\n");
  (*channel)->resize({55, 44});
  const auto sent = co_await (*channel)->write("go\n");
  if (!sent) said.err = sent.error().message;
  co_await drain(**channel, TerminalChannel::Output::out, said.out, "");
  said.status = co_await (*channel)->wait();
  co_return said;
}

TEST_CASE("without a terminal a session has its outputs apart, its stdin and its exit code") {
  TerminalWorld world;
  const Said said = finish(
      world.io, say(*world.connection,
                    {"cat; echo complaint >&2; test -t 0 && echo tty; exit 7", false, "", {}},
                    "from here\n"));
  REQUIRE_MESSAGE(said.status, said.status.error().message);
  CHECK(said.out == "from here\n");
  CHECK(said.err == "complaint\n");
  CHECK(*said.status == ProcessStatus{ProcessStatus::Kind::exited, 7, false});
  // More than a window on both outputs, read one after the other.
  const Said much = finish(
      world.io, say(*world.connection,
                    {"head -c 300000 /dev/zero; head -c 20000 /dev/zero >&2", false, "", {}}, ""));
  CHECK(much.out.size() == 300000);
  CHECK(much.err.size() == 20000);
}

TEST_CASE("a terminal there has the size, the changes of size and the TERM of here") {
  TerminalWorld world;
  const Said said = finish(world.io, resized(*world.connection));
  REQUIRE_MESSAGE(said.status, said.status.error().message);
  CHECK_MESSAGE(said.out.contains("33 101\r\nvt220\r\n"), said.out);
  CHECK_MESSAGE(said.out.ends_with("44 55\r\n"), said.out);
  CHECK(said.err.empty());
  CHECK(*said.status == ProcessStatus{ProcessStatus::Kind::exited, 9, false});
}

}  // namespace
}  // namespace sortie::launcher
