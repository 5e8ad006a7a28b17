// ProxyJump over real sshd processes, and authentication with a real ssh-agent.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <boost/asio/co_spawn.hpp>
#include <csignal>
#include <thread>

#include "launcher/ssh/agent.h"
#include "launcher/ssh/base64.h"
#include "tests/launcher/ssh/fixture.h"
#include "tests/support/descriptors.h"
#include "tests/support/patience.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::launcher;
using namespace sortie::launcher::testing;
namespace asio = boost::asio;

namespace {

using sortie::test::contains;
using sortie::test::count_of;

struct Agent {
  explicit Agent(const std::filesystem::path& socket)
      : path(socket),
        process({"ssh-agent", "-D", "-a", socket.string()}, socket.string() + ".log") {
    for (int i = 0; i < 500 && !std::filesystem::exists(path); ++i)
      std::this_thread::sleep_for(10ms);
  }
  void add(const std::filesystem::path& key) {
    const auto added =
        run({"env", "SSH_AUTH_SOCK=" + path.string(), "ssh-add", "-q", key.string()});
    if (added.code != 0) throw std::runtime_error(added.output);
  }
  std::filesystem::path path;
  Child process;
};

// Two servers: `jump`, and `target`, which the config reaches through it.
struct Behind : World {
  Behind()
      : jump(folder / "jump", public_key, verbose()),
        target(folder / "target", public_key, verbose()) {
    know(jump.known_hosts_line() + target.known_hosts_line());
    configure(
        fmt::format("Host jump\n HostName 127.0.0.1\n Port {}\n"
                    "Host target*\n HostName 127.0.0.1\n Port {}\n ProxyJump jump\n",
                    jump.port(), target.port()));
  }
  static SshdOptions verbose() {
    SshdOptions options;
    options.config = {"LogLevel VERBOSE"};
    return options;
  }
  Sshd jump;
  Sshd target;
};

}  // namespace

TEST_SUITE("launcher") {
  TEST_CASE("ProxyJump: the target is reached through the jump host, data whole both ways") {
    Behind world;
    auto connection = world.connect("target");
    REQUIRE_MESSAGE(connection, (connection ? "" : connection.error().message));
    CHECK((*connection)->peer_address() == "");
    const auto channel = world.start(**connection, "cat");
    const std::string sent(4 << 20, 'j');
    asio::co_spawn(
        world.io,
        [](Channel& c, const std::string& bytes) -> asio::awaitable<void> {
          (void)co_await c.write(bytes);
        }(*channel, sent),
        [](std::exception_ptr) {});
    const auto got =
        finish(world.io, [](Channel& c, std::size_t size) -> asio::awaitable<Result<std::string>> {
          std::string all;
          char buffer[65536];
          while (all.size() < size) {
            auto count = co_await c.read_some(buffer);
            if (!count) co_return std::unexpected(count.error());
            if (*count == 0) break;
            all.append(buffer, *count);
          }
          co_return all;
        }(*channel, sent.size()));
    REQUIRE(got);
    CHECK(*got == sent);
  }

  TEST_CASE(
      "targets behind the same jump host share one connection to it, until the last is gone") {
    Behind world;
    const auto transport = world.transport();
    std::vector<std::unique_ptr<Connection>> connections;
    int failed = 0;
    for (int i = 0; i < 8; ++i) {
      asio::co_spawn(world.io, transport->connect(fmt::format("target{}", i)),
                     [&](std::exception_ptr, Result<std::unique_ptr<Connection>> connection) {
                       if (connection)
                         connections.push_back(std::move(*connection));
                       else
                         ++failed;
                     });
    }
    while (connections.size() + static_cast<std::size_t>(failed) < 8) {
      world.io.restart();
      REQUIRE(world.io.run_one_for(20s) > 0);
    }
    CHECK(failed == 0);
    CHECK(count_of(world.jump.log(), "Accepted publickey") == 1);
    // sshd answers the client before it writes its log.
    CHECK(world.until([&] { return count_of(world.target.log(), "Accepted publickey") >= 8; }));
    CHECK(count_of(world.target.log(), "Accepted publickey") == 8);
    CHECK(world.until([&] { return world.jump.sessions().size() == 1; }));
    connections.resize(1);
    const auto ran = world.run_command(*connections.front(), "echo still");
    REQUIRE(ran);
    CHECK(ran->output == "still\n");
    connections.clear();
    CHECK(world.until([&] { return world.jump.sessions().empty(); }));
    // The next target gets a new connection.
    CHECK(finish(world.io, transport->connect("target9")));
    CHECK(count_of(world.jump.log(), "Accepted publickey") == 2);
  }

  TEST_CASE("a chain of two jump hosts") {
    Behind world;
    const Sshd inner(world.folder / "inner", world.public_key, Behind::verbose());
    world.know(world.known() + inner.known_hosts_line());
    world.configure(
        fmt::format("Host inner\n HostName 127.0.0.1\n Port {}\n"
                    " ProxyJump 127.0.0.1:{},127.0.0.1:{}\n",
                    inner.port(), world.jump.port(), world.target.port()));
    const auto connection = world.connect("inner");
    REQUIRE_MESSAGE(connection, (connection ? "" : connection.error().message));
    CHECK(count_of(world.jump.log(), "Accepted publickey") == 1);
    CHECK(count_of(world.target.log(), "Accepted publickey") == 1);
    CHECK(world.until([&] { return count_of(inner.log(), "Accepted publickey") == 1; }));
  }

  TEST_CASE("failures on the way through a jump host name it and keep their stage") {
    Behind world;
    SUBCASE("the jump host's key is checked like any other") {
      world.know(world.target.known_hosts_line());
      const auto connection = world.connect("target");
      REQUIRE_FALSE(connection);
      CHECK(connection.error().code == ErrorCode::host_key);
      CHECK(contains(connection.error().message, "jump host jump: "));
    }
    SUBCASE("so is the target's, with a command that works from here") {
      world.know(world.jump.known_hosts_line());
      const auto connection = world.connect("target");
      REQUIRE_FALSE(connection);
      CHECK(connection.error().code == ErrorCode::host_key);
      const std::string& message = connection.error().message;
      const auto start = message.find("`echo ");
      REQUIRE(start != std::string::npos);
      const std::string command =
          message.substr(start + 1, message.find('`', start + 1) - start - 1);
      CHECK(run({"sh", "-c", command}).code == 0);
      CHECK(world.connect("target"));
    }
    SUBCASE("nothing listens on the target") {
      world.target.stop();
      const auto connection = world.connect("target");
      REQUIRE_FALSE(connection);
      CHECK(connection.error().code == ErrorCode::connect);
      CHECK(contains(connection.error().message, "jump host jump: "));
      CHECK(contains(connection.error().message, "Connection refused"));
    }
    SUBCASE("nothing listens on the jump host") {
      world.jump.stop();
      const auto connection = world.connect("target");
      REQUIRE_FALSE(connection);
      CHECK(connection.error().code == ErrorCode::connect);
      CHECK(contains(connection.error().message, "jump host jump: "));
    }
    SUBCASE("a jump that leads back to itself") {
      world.configure("Host a\n ProxyJump b\nHost b\n ProxyJump a\n");
      const auto connection = world.connect("a");
      REQUIRE_FALSE(connection);
      CHECK(connection.error().code == ErrorCode::config);
      CHECK(contains(connection.error().message, "leads back to itself"));
    }
  }

  TEST_CASE("the jump host goes away under a running command: lost") {
    Behind world;
    auto connection = world.connect("target");
    REQUIRE(connection);
    const auto channel = world.start(**connection, "sleep 600");
    for (const pid_t session : world.jump.sessions()) ::kill(session, SIGKILL);
    const auto ran = finish(world.io, World::read_all(*channel), 20s);
    REQUIRE_FALSE(ran);
    CHECK(ran.error().code == ErrorCode::lost);
  }

  TEST_CASE("the agent signs in, for keys of every type, without libssh ever waiting for it") {
    World world;
    Agent agent(world.folder / "agent");
    world.environment.agent_socket = agent.path;
    std::filesystem::remove(world.home() / "id_ed25519");
    for (const char* type : {"ed25519", "ecdsa", "rsa"}) {
      CAPTURE(type);
      const auto file = world.folder / fmt::format("agent_{}", type);
      const Sshd server(world.folder / fmt::format("sshd_{}", type), make_key(file, type));
      agent.add(file);
      std::filesystem::remove(file);
      std::filesystem::remove(file.string() + ".pub");
      world.know(server.known_hosts_line());
      const auto connection = world.connect(fmt::format("127.0.0.1:{}", server.port()));
      CHECK_MESSAGE(connection, (connection ? "" : connection.error().message));
    }
  }

  TEST_CASE("an encrypted key file that the agent holds is used through the agent") {
    World world;
    const auto file = world.folder / "locked";
    make_key(file);
    Agent agent(world.folder / "agent");
    agent.add(file);
    CHECK(run({"ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", file.string()}).code == 0);
    const Sshd server(world.folder / "sshd", read_text(file.string() + ".pub"));
    world.know(server.known_hosts_line());
    world.configure(fmt::format("IdentitiesOnly yes\nIdentityFile {}\nIdentityAgent {}\n",
                                file.string(), agent.path.string()));
    const auto connection = world.connect(fmt::format("127.0.0.1:{}", server.port()));
    CHECK_MESSAGE(connection, (connection ? "" : connection.error().message));
  }

  TEST_CASE("IdentitiesOnly keeps the agent's other keys back") {
    World world;
    Agent agent(world.folder / "agent");
    // More keys than the 6 attempts that sshd allows.
    for (int i = 0; i < 8; ++i) {
      make_key(world.folder / fmt::format("extra{}", i));
      agent.add(world.folder / fmt::format("extra{}", i));
    }
    const Sshd server(world.folder / "sshd", world.public_key);
    world.know(server.known_hosts_line());
    world.environment.agent_socket = agent.path;
    const std::string host = fmt::format("127.0.0.1:{}", server.port());
    const auto refused = world.connect(host);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::auth);
    CHECK(contains(refused.error().message, "set IdentitiesOnly and IdentityFile"));
    // Each refused key uses a socket to the agent.
    const std::size_t open = sortie::test::open_files();
    REQUIRE_FALSE(world.connect(host));
    CHECK(sortie::test::open_files() == open);
    world.configure("IdentitiesOnly yes\n");
    const auto connection = world.connect(host);
    CHECK_MESSAGE(connection, (connection ? "" : connection.error().message));
  }

  TEST_CASE("an agent that is gone or silent does not keep a key file from being used") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key);
    world.know(server.known_hosts_line());
    const std::string host = fmt::format("127.0.0.1:{}", server.port());
    world.environment.agent_socket = world.folder / "no-agent";
    CHECK(world.connect(host));
    const int silent = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = world.folder / "silent-agent";
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(::bind(silent, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(silent, 8) == 0);
    world.environment.agent_socket = path;
    config::SshConfig ssh;
    ssh.auth_timeout = 3000ms;
    const auto connection = world.connect(host, ssh);
    CHECK_MESSAGE(connection, (connection ? "" : connection.error().message));
    ::close(silent);
  }

  TEST_CASE("an agent that lists a key and never signs leaves time for the key's file") {
    World world;
    const auto blob_at = world.public_key.find(' ') + 1;
    const auto blob_end = world.public_key.find_first_of(" \n", blob_at);
    const std::string blob = base64_decode(world.public_key.substr(blob_at, blob_end - blob_at));
    REQUIRE_FALSE(blob.empty());
    const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = world.folder / "lazy-agent";
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listener, 8) == 0);
    std::jthread agent([&] {
      const std::string list = ssh::make_identities_answer({blob, "lazy"});
      std::vector<int> clients;
      for (int fd; (fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
        clients.push_back(fd);
        char head[5] = {};  // length and type of the request
        if (::recv(fd, head, sizeof head, MSG_WAITALL) == 5 && head[4] == 11)
          (void)::send(fd, list.data(), list.size(), MSG_NOSIGNAL);
      }
      for (const int fd : clients) ::close(fd);
    });
    world.environment.agent_socket = path;
    config::SshConfig ssh;
    ssh.auth_timeout = test::patient(8000ms);
    struct Shut {
      int fd;
      ~Shut() { ::shutdown(fd, SHUT_RDWR); }  // ends the agent's thread, also after a failure
    } const shut{listener};
    {
      const Sshd server(world.folder / "sshd", world.public_key);
      world.know(server.known_hosts_line());
      const auto connection = world.connect(fmt::format("127.0.0.1:{}", server.port()), ssh);
      CHECK_MESSAGE(connection, (connection ? "" : connection.error().message));
    }
    ::shutdown(listener, SHUT_RDWR);
    agent.join();
    ::close(listener);
  }
}
