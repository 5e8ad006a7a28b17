// Commands over a real sshd: data in both directions, exit, stderr, and what happens to coroutines
// when their connection disappears.
#include <doctest/doctest.h>
#include <fmt/core.h>

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "tests/launcher/ssh/fixture.h"

using namespace sortie;
using namespace sortie::launcher;
using namespace sortie::launcher::testing;
namespace asio = boost::asio;

namespace {

struct Served : World {
  explicit Served(SshdOptions options = {})
      : server(folder / "sshd", public_key, std::move(options)) {
    know(server.known_hosts_line());
    connection = connect_to(server);
  }
  Sshd server;
  std::unique_ptr<Connection> connection;
};

std::string pattern_bytes(std::size_t size) {
  std::string bytes(size, '\0');
  std::uint32_t state = 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

asio::awaitable<void> write_all(Channel& channel, std::string bytes, bool& written) {
  const auto result = co_await channel.write(bytes);
  written = result.has_value();
}

asio::awaitable<Result<std::string>> read_exactly(Channel& channel, std::size_t size) {
  std::string got;
  char buffer[65536];
  while (got.size() < size) {
    const auto count = co_await channel.read_some(buffer);
    if (!count) co_return std::unexpected(count.error());
    if (*count == 0) break;
    got.append(buffer, *count);
  }
  co_return got;
}

void ignore(std::exception_ptr error) {
  if (error) std::rethrow_exception(error);
}

}  // namespace

TEST_SUITE("launcher") {
  TEST_CASE("a command's output and exit code come back") {
    Served world;
    CHECK(world.connection->peer_address() == "127.0.0.1");
    const auto ran = world.run_command(*world.connection, "echo out; echo err >&2; exit 3");
    REQUIRE(ran);
    CHECK(ran->output == "out\n");
    CHECK(ran->status == ProcessStatus{ProcessStatus::Kind::exited, 3, false});
  }

  TEST_CASE("a command that dies by a signal is told from one that exits") {
    Served world;
    const auto killed = world.run_command(*world.connection, "kill -9 $$");
    REQUIRE(killed);
    CHECK(killed->status == ProcessStatus{ProcessStatus::Kind::signaled, 9, false});
    const auto aborted = world.run_command(*world.connection, "ulimit -c 0; kill -ABRT $$");
    REQUIRE(aborted);
    CHECK(aborted->status.kind == ProcessStatus::Kind::signaled);
    CHECK(aborted->status.code == 6);
    const auto exited = world.run_command(*world.connection, "exit 137");
    REQUIRE(exited);
    CHECK(exited->status == ProcessStatus{ProcessStatus::Kind::exited, 137, false});
  }

  TEST_CASE("8 MiB go through a command and come back whole, both ways at once") {
    Served world;
    const auto channel = world.start(*world.connection, "cat");
    const std::string sent = pattern_bytes(8 << 20);
    bool written = false;
    asio::co_spawn(world.io, write_all(*channel, sent, written), ignore);
    const auto got = finish(world.io, read_exactly(*channel, sent.size()));
    REQUIRE(got);
    CHECK(world.until([&] { return written; }));
    CHECK(*got == sent);
  }

  TEST_CASE("a command that does not read holds the writer back, and goes on when it does") {
    Served world;
    const std::string sent = pattern_bytes(16 << 20);
    bool written = false;
    const auto go = world.folder / "go";
    const auto slow =
        world.start(*world.connection, "until [ -e '" + go.string() +
                                           "' ]; do sleep 0.05; done; head -c 16777216 | wc -c");
    asio::co_spawn(world.io, write_all(*slow, sent, written), ignore);
    world.io.restart();
    world.io.run_for(300ms);
    CHECK_FALSE(written);  // sshd's window and the pipe are full, the rest waits here
    write_text(go, "");
    const auto count = finish(world.io, World::read_all(*slow));
    REQUIRE(count);
    CHECK(world.until([&] { return written; }));
    CHECK(count->output.find("16777216") != std::string::npos);
  }

  TEST_CASE("stderr is kept apart, and only its last 64 KiB") {
    Served world;
    const auto channel = world.start(
        *world.connection,
        "echo start >&2; i=0; while [ $i -lt 20000 ]; do echo 0123456789 >&2; i=$((i+1)); done; "
        "echo last >&2; echo out");
    const auto ran = finish(world.io, World::read_all(*channel));
    REQUIRE(ran);
    CHECK(ran->output == "out\n");
    CHECK(channel->stderr_tail().size() == 64 * 1024);
    CHECK(channel->stderr_tail().ends_with("0123456789\nlast\n"));
    CHECK(channel->stderr_tail().find("start") == std::string::npos);
  }

  TEST_CASE("destroying a channel gives the command end of file") {
    Served world;
    const auto mark = world.folder / "seen-eof";
    { const auto channel = world.start(*world.connection, "cat; touch " + mark.string()); }
    CHECK(world.until([&] { return std::filesystem::exists(mark); }));
    // The connection can still be used.
    const auto ran = world.run_command(*world.connection, "echo again");
    REQUIRE(ran);
    CHECK(ran->output == "again\n");
  }

  TEST_CASE("several channels share a connection without starving each other") {
    Served world;
    const auto quiet = world.start(*world.connection, "read -r line; echo \"got $line\"");
    const auto noisy = world.start(*world.connection, "yes | head -c 4000000");
    const auto noise = finish(world.io, World::read_all(*noisy));
    REQUIRE(noise);
    CHECK(noise->output.size() == 4000000);
    bool written = false;
    asio::co_spawn(world.io, write_all(*quiet, "ping\n", written), ignore);
    const auto answer = finish(world.io, World::read_all(*quiet));
    REQUIRE(answer);
    CHECK(answer->output == "got ping\n");
  }

  TEST_CASE("a reader inside a connection that is closed or destroyed ends with lost") {
    Served world;
    auto channel = world.start(*world.connection, "sleep 600");
    Result<World::Ran> ended;
    bool done = false;
    asio::co_spawn(world.io, World::read_all(*channel), [&](std::exception_ptr, auto result) {
      ended = std::move(result);
      done = true;
    });
    world.io.restart();
    world.io.run_for(50ms);
    CHECK_FALSE(done);
    SUBCASE("channel closed") {
      channel->close();
    }
    SUBCASE("connection closed") {
      world.connection->close();
    }
    SUBCASE("connection destroyed") {
      world.connection.reset();
    }
    SUBCASE("channel destroyed under the reader") {
      channel.reset();
    }
    REQUIRE(world.until([&] { return done; }));
    REQUIRE_FALSE(ended);
    CHECK(ended.error().code == ErrorCode::lost);
  }

  TEST_CASE("a connection that the server's side drops is lost to reader, writer and waiter") {
    Served world;
    const auto channel = world.start(*world.connection, "echo $PPID; sleep 600");
    const auto pid = finish(world.io, read_exactly(*channel, 1));
    REQUIRE(pid);
    std::string number = *pid;
    while (!number.empty() && number.back() == '\n') number.pop_back();
    // The parent of the login shell is the sshd process of this connection.
    CHECK(run({"kill", "-9", number}).code == 0);
    const auto read = finish(world.io, World::read_all(*channel), 20s);
    REQUIRE_FALSE(read);
    CHECK(read.error().code == ErrorCode::lost);
    const auto write = finish(world.io, channel->write("x"), 20s);
    REQUIRE_FALSE(write);
    CHECK(write.error().code == ErrorCode::lost);
    const auto status = finish(world.io, channel->wait(), 20s);
    REQUIRE_FALSE(status);
    CHECK(status.error().code == ErrorCode::lost);
    const auto again = finish(world.io, world.connection->exec("true"), 20s);
    REQUIRE_FALSE(again);
    CHECK(again.error().code == ErrorCode::lost);
  }

  TEST_CASE("a server that refuses channels is a channel error") {
    SshdOptions options;
    options.config = {"MaxSessions 0"};
    World world;
    const Sshd server(world.folder / "sshd", world.public_key, options);
    world.know(server.known_hosts_line());
    const auto connection = world.connect_to(server);
    const auto channel = finish(world.io, connection->exec("true"));
    REQUIRE_FALSE(channel);
    CHECK(channel.error().code == ErrorCode::channel);
    CHECK(channel.error().message.find("open a channel") != std::string::npos);
  }

  TEST_CASE("keys are exchanged anew in the middle of a stream") {
    SshdOptions options;
    options.config = {"RekeyLimit 1M"};
    Served world(options);
    const auto channel = world.start(*world.connection, "cat");
    const std::string sent = pattern_bytes(6 << 20);
    bool written = false;
    asio::co_spawn(world.io, write_all(*channel, sent, written), ignore);
    const auto got = finish(world.io, read_exactly(*channel, sent.size()));
    REQUIRE(got);
    CHECK(*got == sent);
  }
}
