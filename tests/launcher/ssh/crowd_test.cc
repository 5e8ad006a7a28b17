// Many hosts at once: servers that drop connections (sshd's default MaxStartups), jump hosts in
// front of many hosts, and hosts that never answer next to hosts that do.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <sys/socket.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>

#include "launcher/ssh/fan_out.h"
#include "launcher/ssh/handshake.h"
#include "launcher/ssh/server_gate.h"
#include "launcher/ssh/session.h"
#include "tests/launcher/ssh/fixture.h"
#include "tests/support/patience.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::launcher;
using namespace sortie::launcher::testing;
namespace asio = boost::asio;

namespace {

using sortie::test::count_of;

SshdOptions as_installed() {
  SshdOptions options;
  options.config = {"LogLevel VERBOSE", "MaxStartups 10:30:100", "MaxSessions 10"};
  return options;
}

asio::awaitable<std::string> reach(Transport& transport, std::string host,
                                   std::vector<std::unique_ptr<Connection>>& kept) {
  auto connection = co_await transport.connect(host);
  if (!connection) co_return host + ": " + connection.error().message;
  auto channel = co_await (*connection)->exec("echo here");
  if (!channel) co_return host + ": " + channel.error().message;
  auto ran = co_await World::read_all(**channel);
  if (!ran) co_return host + ": " + ran.error().message;
  (*connection)->settled();
  kept.push_back(std::move(*connection));
  co_return ran->output;
}

// Connects to all hosts concurrently and returns the connections. Each failure is a failed check.
std::vector<std::unique_ptr<Connection>> reach_all(World& world, Transport& transport,
                                                   const std::vector<std::string>& hosts) {
  std::vector<std::unique_ptr<Connection>> kept;
  std::size_t done = 0;
  for (const auto& host : hosts)
    asio::co_spawn(world.io, reach(transport, host, kept),
                   [&](std::exception_ptr, std::string output) {
                     CHECK(output == "here\n");
                     ++done;
                   });
  world.io.restart();
  const auto limit = std::chrono::steady_clock::now() + 60s;
  while (done < hosts.size() && std::chrono::steady_clock::now() < limit) world.io.run_one_for(1s);
  CHECK(done == hosts.size());
  CHECK(kept.size() == hosts.size());
  return kept;
}

// Accepts connections and closes each at once, as sshd does with those past MaxStartups.
asio::awaitable<void> drop_all(std::shared_ptr<asio::ip::tcp::acceptor> acceptor) {
  for (;;) {
    auto socket = co_await acceptor->async_accept(asio::use_awaitable);
    socket.close();
  }
}

std::vector<std::string> names(int count) {
  std::vector<std::string> all;
  for (int i = 0; i < count; ++i) all.push_back(fmt::format("target{}", i));
  return all;
}

// Connects to sshd, receives its banner, and does not continue.
int hold_a_place(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int tries = 0; tries < 1500; ++tries) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char banner[4] = {};
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
        ::recv(fd, banner, sizeof banner, MSG_WAITALL) == 4 &&
        std::string_view(banner, 4) == "SSH-")
      return fd;
    ::close(fd);
    std::this_thread::sleep_for(20ms);
  }
  throw std::runtime_error("sshd takes nobody");
}

// A listener whose queue is full: its SYNs are dropped, as those to a host that is down.
struct DeadHost {
  DeadHost() {
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(fd, reinterpret_cast<sockaddr*>(&address), size);
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    ::listen(fd, 0);
    for (int i = 0; i < 3; ++i) {
      const int filler = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      ::connect(filler, reinterpret_cast<sockaddr*>(&address), sizeof address);
      fillers.push_back(filler);
    }
  }
  ~DeadHost() {
    for (const int filler : fillers) ::close(filler);
    ::close(fd);
  }
  int port() const { return ntohs(address.sin_port); }
  int fd = -1;
  sockaddr_in address{};
  std::vector<int> fillers;
};

}  // namespace

TEST_SUITE("launcher") {
  TEST_CASE("48 names of one sshd as it is installed: all get in") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key, as_installed());
    world.know(server.known_hosts_line());
    world.configure(fmt::format("Host target*\n HostName 127.0.0.1\n Port {}\n", server.port()));
    const auto transport = world.transport();
    const auto kept = reach_all(world, *transport, names(48));
    CHECK(count_of(server.log(), "Accepted publickey") == 48);
    CHECK(server.log().contains("past MaxStartups"));  // otherwise this test proves nothing
  }

  TEST_CASE("40 hosts behind one jump host as it is installed: one connection to it, none lost") {
    World world;
    const Sshd jump(world.folder / "jump", world.public_key, as_installed());
    const Sshd target(world.folder / "target", world.public_key, as_installed());
    world.know(jump.known_hosts_line() + target.known_hosts_line());
    world.configure(
        fmt::format("Host jump\n HostName 127.0.0.1\n Port {}\n"
                    "Host target*\n HostName 127.0.0.1\n Port {}\n ProxyJump jump\n",
                    jump.port(), target.port()));
    const auto transport = world.transport();
    const auto kept = reach_all(world, *transport, names(40));
    CHECK(count_of(jump.log(), "Accepted publickey") == 1);
    CHECK(count_of(target.log(), "Accepted publickey") == 40);
  }

  TEST_CASE("a connection that the server dropped before anybody here looked is tried again") {
    // As when the stream through a jump host ends: libssh has no error text for it.
    World world;
    int pair[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    const std::string_view words = "Exceeded MaxStartups\r\n";
    SUBCASE("without a word") {}
    SUBCASE("with sshd's words") {
      REQUIRE(::write(pair[1], words.data(), words.size()) == static_cast<ssize_t>(words.size()));
    }
    ::close(pair[1]);
    const auto core = ssh::SessionCore::create(world.io.get_executor(), Fd(pair[0]), nullptr);
    REQUIRE(core);
    const auto files = std::make_shared<ssh::UserFiles>(world.io.get_executor(),
                                                        config::SshConfig{}, world.environment);
    ssh::HostSettings settings;
    settings.user = world.environment.user;
    const auto shaken = finish(world.io, ssh::shake_hands(*core, settings, files, {}));
    REQUIRE_FALSE(shaken);
    CHECK(shaken.error().message.contains("closed the connection before its banner"));
    CHECK(ssh::dropped_before_banner(**core));
  }

  TEST_CASE("a jump host whose process runs out of descriptors gets another connection") {
    World world;
    Sshd jump(world.folder / "jump", world.public_key, as_installed());
    const Sshd target(world.folder / "target", world.public_key);
    world.know(jump.known_hosts_line() + target.known_hosts_line());
    world.configure(
        fmt::format("Host jump\n HostName 127.0.0.1\n Port {}\n"
                    "Host target*\n HostName 127.0.0.1\n Port {}\n ProxyJump jump\n",
                    jump.port(), target.port()));
    jump.limit_open_files(20);
    const auto transport = world.transport();
    const auto kept = reach_all(world, *transport, names(24));
    const int connections = count_of(jump.log(), "Accepted publickey");
    CHECK(connections >= 2);
    CHECK(connections <= 12);
  }

  TEST_CASE("a server that always drops is tried again until handshake_timeout, not for ever") {
    World world;
    SshdOptions closed = as_installed();
    closed.config = {"MaxStartups 1:100:1", "LoginGraceTime 60"};
    const Sshd server(world.folder / "sshd", world.public_key, closed);
    // A client that does not authenticate occupies the only place.
    const int holder = hold_a_place(server.port());
    config::SshConfig ssh;
    ssh.handshake_timeout = 3000ms;  // each time it drops within that time
    const auto began = std::chrono::steady_clock::now();
    const auto refused = world.connect(fmt::format("127.0.0.1:{}", server.port()), ssh);
    const auto took = std::chrono::steady_clock::now() - began;
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::handshake);
    CHECK(refused.error().message.contains("MaxStartups"));
    CHECK(refused.error().message.contains("tried "));
    CHECK(took < test::patient(9s));
    // Connects if the place becomes free meanwhile.
    world.know(server.known_hosts_line());
    asio::steady_timer timer(world.io, 500ms);
    timer.async_wait([&](boost::system::error_code) { ::close(holder); });
    ssh.handshake_timeout = 10000ms;
    const auto got_in = world.connect(fmt::format("127.0.0.1:{}", server.port()), ssh);
    CHECK_MESSAGE(got_in, (got_in ? "" : got_in.error().message));
  }

  TEST_CASE("hosts that wait to be tried again hold up no host that is not dropped") {
    World world;
    std::vector<std::shared_ptr<asio::ip::tcp::acceptor>> dropping;
    std::vector<std::string> hosts;
    for (int i = 0; i < 8; ++i) {
      const asio::ip::tcp::endpoint any(asio::ip::address_v4::loopback(), 0);
      dropping.push_back(std::make_shared<asio::ip::tcp::acceptor>(world.io, any));
      hosts.push_back(fmt::format("127.0.0.1:{}", dropping.back()->local_endpoint().port()));
      asio::co_spawn(world.io, drop_all(dropping.back()), [](std::exception_ptr) {});
    }
    const Sshd server(world.folder / "sshd", world.public_key);
    world.know(server.known_hosts_line());
    config::SshConfig ssh;
    ssh.fanout = 1;
    ssh.handshake_timeout = 120s;
    const auto transport = world.transport(ssh);
    int failed = 0;
    for (const auto& host : hosts)
      asio::co_spawn(world.io, transport->connect(host),
                     [&](std::exception_ptr, Result<std::unique_ptr<Connection>>) { ++failed; });
    world.spend(10s);  // pauses between tries have grown to about a second
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < 3; ++i)
      CHECK(reach_all(world, *transport, {fmt::format("127.0.0.1:{}", server.port())}).size() == 1);
    CHECK(std::chrono::steady_clock::now() - began < test::patient(5s));
    CHECK(failed == 0);
  }

  TEST_CASE("hosts that are down hold up no host that is not") {
    World world;
    const DeadHost dead;
    const Sshd server(world.folder / "sshd", world.public_key);
    world.know(server.known_hosts_line());
    config::SshConfig ssh;
    ssh.fanout = 2;
    ssh.connect_timeout = 120s;
    const auto transport = world.transport(ssh);
    int failed = 0;
    for (int i = 0; i < 12; ++i)
      asio::co_spawn(world.io, transport->connect(fmt::format("127.0.0.1:{}", dead.port())),
                     [&](std::exception_ptr, Result<std::unique_ptr<Connection>>) { ++failed; });
    const auto began = std::chrono::steady_clock::now();
    const auto kept = reach_all(
        world, *transport, std::vector<std::string>(4, fmt::format("127.0.0.1:{}", server.port())));
    CHECK(std::chrono::steady_clock::now() - began < test::patient(60s));
    CHECK(failed == 0);
  }

  TEST_CASE("servers that accept and say nothing give their place up, and keep their deadline") {
    World world;
    const int silent = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    socklen_t size = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(silent, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::getsockname(silent, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    REQUIRE(::listen(silent, 64) == 0);
    const Sshd server(world.folder / "sshd", world.public_key);
    world.know(server.known_hosts_line());
    config::SshConfig ssh;
    ssh.fanout = 2;
    ssh.handshake_timeout = 120s;
    const auto transport = world.transport(ssh);
    int failed = 0;
    for (int i = 0; i < 6; ++i)
      asio::co_spawn(world.io,
                     transport->connect(fmt::format("127.0.0.1:{}", ntohs(address.sin_port))),
                     [&](std::exception_ptr, Result<std::unique_ptr<Connection>>) { ++failed; });
    world.spend(300ms);
    const auto began = std::chrono::steady_clock::now();
    const auto kept = reach_all(
        world, *transport, std::vector<std::string>(2, fmt::format("127.0.0.1:{}", server.port())));
    CHECK(std::chrono::steady_clock::now() - began < test::patient(60s));
    CHECK(failed == 0);
    ::close(silent);
  }

  TEST_CASE("a host that freezes is lost within 15 s, behind a jump host and while nobody reads") {
    World world;
    const Sshd jump(world.folder / "jump", world.public_key);
    const Sshd target(world.folder / "target", world.public_key);
    world.know(jump.known_hosts_line() + target.known_hosts_line());
    world.configure(
        fmt::format("Host jump\n HostName 127.0.0.1\n Port {}\n"
                    "Host target*\n HostName 127.0.0.1\n Port {}\n ProxyJump jump\n",
                    jump.port(), target.port()));
    const auto transport = world.transport();
    const auto kept = reach_all(world, *transport, {"target"});
    REQUIRE(world.until([&] { return target.sessions().size() == 1; }));
    const auto sessions = target.sessions();
    world.spend(4s);  // idle but alive: keep-alives are answered
    CHECK(world.run_command(*kept.front(), "echo still"));
    ::kill(sessions.front(), SIGSTOP);
    world.spend(14500ms);
    const auto channel = finish(world.io, kept.front()->exec("true"));
    REQUIRE_FALSE(channel);
    CHECK(channel.error().code == ErrorCode::lost);
    ::kill(sessions.front(), SIGKILL);
  }

  TEST_CASE("ServerGate learns: up from eight, down after drops, up again slowly") {
    asio::io_context io;
    const auto gate = std::make_shared<ssh::ServerGate>(io.get_executor());
    const auto enter = [&] {
      return finish(io,
                    [](std::shared_ptr<ssh::ServerGate> g)
                        -> asio::awaitable<std::shared_ptr<ssh::ServerGate::Pass>> {
                      co_return co_await g->enter();
                    }(gate));
    };
    for (int i = 0; i < 8; ++i) enter()->got_in();
    CHECK(gate->limit() == 16);
    std::vector<std::shared_ptr<ssh::ServerGate::Pass>> passes;
    for (int i = 0; i < 16; ++i) passes.push_back(enter());
    passes[0]->dropped();
    const double cut = gate->limit();
    CHECK(cut < 10);
    passes[1]->dropped();  // from the same burst: no further reduction
    CHECK(gate->limit() == cut);
    passes.clear();
    enter()->got_in();
    CHECK(gate->limit() > cut);
    CHECK(gate->limit() < cut + 0.5);
    enter()->unreachable();
    CHECK(gate->limit() > 1000);
  }
}
