// Reaching a server, every stage up to the key exchange at which that can fail, with the messages
// shown to the user, and many connections at once.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/ssh/dial.h"
#include "tests/launcher/ssh/fixture.h"
#include "tests/support/patience.h"
#include "tests/support/run_within.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::launcher;
using namespace sortie::launcher::testing;
namespace asio = boost::asio;

namespace {

using sortie::test::contains;

/// A port that accepts connections and then does nothing, or sends `greeting`.
struct Listener {
  explicit Listener(std::string greeting = "", bool accepting = true) {
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(fd, reinterpret_cast<sockaddr*>(&address), size);
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    ::listen(fd, 8);
    port = ntohs(address.sin_port);
    if (greeting.empty() || !accepting) return;
    child = ::fork();
    if (child == 0) {
      for (;;) {
        const int peer = ::accept(fd, nullptr, nullptr);
        (void)!::write(peer, greeting.data(), greeting.size());
        if (greeting.front() == '!') ::close(peer);
      }
    }
  }
  ~Listener() {
    ::close(fd);
    if (child > 0) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
  int fd = -1;
  int port = 0;
  pid_t child = -1;
};

}  // namespace

TEST_SUITE("launcher") {
  TEST_CASE("nothing listens: connect, at once") {
    World world;
    const auto connection = world.connect(at(free_port()));
    REQUIRE_FALSE(connection);
    CHECK(connection.error().code == ErrorCode::connect);
    CHECK(contains(connection.error().message, "Connection refused"));
  }

  TEST_CASE("no descriptor is left: the limit is named, not the route to the host") {
    asio::io_context io;
    const Listener listener;
    const std::vector<asio::ip::tcp::endpoint> endpoints{
        {asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(listener.port)}};
    CHECK(finish(io, ssh::dial(endpoints, 1000ms)));  // opens what the I/O context needs
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    const int lowest = ::dup(listener.fd);
    ::close(lowest);
    const rlimit none{static_cast<rlim_t>(lowest), before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    const auto dialled = finish(io, ssh::dial(endpoints, 1000ms));
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
    REQUIRE_FALSE(dialled);
    CHECK(dialled.error().out_of_files);
    CHECK(dialled.error().error.code == ErrorCode::connect);
    CHECK(dialled.error().error.message.ends_with("Too many open files; raise `ulimit -n`"));
  }

  TEST_CASE("an address that swallows packets: connect, after connect_timeout") {
    // A listener whose backlog is full drops further SYNs, as a firewall does.
    World world;
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(fd, reinterpret_cast<sockaddr*>(&address), size);
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    ::listen(fd, 0);
    int fillers[4];
    for (int& filler : fillers) {
      filler = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      ::connect(filler, reinterpret_cast<sockaddr*>(&address), size);
    }
    config::SshConfig ssh;
    ssh.connect_timeout = 300ms;
    const auto before = std::chrono::steady_clock::now();
    const auto connection = world.connect(at(ntohs(address.sin_port)), ssh);
    const auto took = std::chrono::steady_clock::now() - before;
    REQUIRE_FALSE(connection);
    CHECK(connection.error().code == ErrorCode::connect);
    CHECK(contains(connection.error().message, "no answer within 300 ms"));
    CHECK(took < test::patient(8s));
    for (const int filler : fillers) ::close(filler);
    ::close(fd);
  }

  TEST_CASE("a server that accepts and says nothing: handshake, after handshake_timeout") {
    World world;
    const Listener silent;
    config::SshConfig ssh;
    ssh.handshake_timeout = 300ms;
    const auto before = std::chrono::steady_clock::now();
    const auto connection = world.connect(at(silent.port), ssh);
    const auto took = std::chrono::steady_clock::now() - before;
    REQUIRE_FALSE(connection);
    CHECK(connection.error().code == ErrorCode::handshake);
    CHECK(contains(connection.error().message, "sent nothing within 300 ms"));
    CHECK(took >= 300ms);
    CHECK(took < test::patient(8s));
  }

  TEST_CASE("a server that stops after its banner: handshake") {
    World world;
    const Listener half("SSH-2.0-Half_1.0\r\n");
    config::SshConfig ssh;
    ssh.handshake_timeout = 4000ms;  // the banner has arrived by then
    const auto connection = world.connect(at(half.port), ssh);
    REQUIRE_FALSE(connection);
    CHECK(connection.error().code == ErrorCode::handshake);
    CHECK(contains(connection.error().message, "key exchange not done within 4000 ms"));
  }

  TEST_CASE("something that is no sshd: handshake") {
    World world;
    const Listener chatty(std::string(600, 'x'));
    const auto connection = world.connect(at(chatty.port));
    REQUIRE_FALSE(connection);
    CHECK(connection.error().code == ErrorCode::handshake);
    CHECK(contains(connection.error().message, "not an SSH server"));
    const Listener gone("!\r\n");
    config::SshConfig ssh;
    ssh.handshake_timeout = 3000ms;  // the server closes within that time, on every try
    const auto closed = world.connect(at(gone.port), ssh);
    REQUIRE_FALSE(closed);
    CHECK(closed.error().code == ErrorCode::handshake);
    CHECK(contains(closed.error().message, "closed the connection before its banner"));
  }

  TEST_CASE("a name that does not resolve: resolve, within resolve_timeout") {
    World world;
    config::SshConfig ssh;
    ssh.resolve_timeout = 1000ms;
    const auto before = std::chrono::steady_clock::now();
    const auto connection = world.connect("x.invalid", ssh);
    const auto took = std::chrono::steady_clock::now() - before;
    REQUIRE_FALSE(connection);
    CHECK(connection.error().code == ErrorCode::resolve);
    CHECK(contains(connection.error().message, "name x.invalid"));
    CHECK(took < test::patient(4500ms));
  }

  TEST_CASE("a name resolves and every one of its addresses is tried") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key);
    // localhost resolves to ::1 first if there is IPv6. sshd listens only on 127.0.0.1.
    world.know(fmt::format("[localhost]:{} {}\n", server.port(), server.host_key()));
    const auto connection = world.connect(fmt::format("localhost:{}", server.port()));
    REQUIRE_MESSAGE(connection, (connection ? "" : connection.error().message));
    CHECK((*connection)->peer_address() == "127.0.0.1");
  }

  TEST_CASE("32 hosts at once") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key);
    world.know(server.known_hosts_line());
    const auto transport = world.transport();
    int good = 0;
    for (int i = 0; i < 32; ++i) {
      asio::co_spawn(
          world.io,
          [](Transport& t, std::string host) -> asio::awaitable<std::string> {
            auto connection = co_await t.connect(host);
            if (!connection) co_return connection.error().message;
            auto channel = co_await (*connection)->exec("echo here");
            if (!channel) co_return channel.error().message;
            auto ran = co_await World::read_all(**channel);
            co_return ran ? ran->output : ran.error().message;
          }(*transport, at(server.port())),
          [&](std::exception_ptr, std::string output) {
            CHECK(output == "here\n");
            ++good;
          });
    }
    world.io.restart();
    test::run_within(world.io, 60s);
    CHECK(good == 32);
  }

  TEST_CASE("connecting coroutines may be thrown away at any point") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key);
    world.know(server.known_hosts_line());
    for (int steps = 0; steps < 40; steps += 3) {
      auto io = std::make_unique<asio::io_context>();
      auto transport = make_ssh_transport(io->get_executor(), {}, world.environment);
      asio::co_spawn(*io, transport->connect(at(server.port())),
                     [](std::exception_ptr, Result<std::unique_ptr<Connection>>) {});
      for (int i = 0; i < steps; ++i) io->run_one_for(100ms);
      transport.reset();
      io.reset();
    }
  }
}
