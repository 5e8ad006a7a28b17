// Connecting to a server, and every stage at which that can fail, with the messages shown to the
// user.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "launcher/ssh/dial.h"
#include "launcher/ssh/keys.h"
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

std::string at(int port) {
  return fmt::format("127.0.0.1:{}", port);
}

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
  TEST_CASE("an unknown host key is refused with its fingerprint and the command that trusts it") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key);
    const auto connection = world.connect(at(server.port()));
    REQUIRE_FALSE(connection);
    CHECK(connection.error().code == ErrorCode::host_key);
    const std::string& message = connection.error().message;
    const auto shown =
        run({"ssh-keygen", "-lf", (world.folder / "sshd/host_ed25519.pub").string()}).output;
    const std::string print = shown.substr(shown.find("SHA256:"), 50);
    CHECK(contains(message, "not known (ssh-ed25519 " + print + ")"));
    const std::string command = fmt::format("ssh-keyscan -p {} 127.0.0.1 >> {}", server.port(),
                                            (world.home() / "known_hosts").string());
    CHECK(contains(message, "`" + command + "`"));
    CHECK(contains(message, "runner.ssh.accept_new=true"));
    CHECK_FALSE(std::filesystem::exists(world.home() / "known_hosts"));
    // The command works.
    CHECK(run({"sh", "-c", command}).code == 0);
    CHECK(world.connect(at(server.port())));
  }

  TEST_CASE("accept_new records an unknown key, once, in a file of mode 0600") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key);
    config::SshConfig ssh;
    ssh.accept_new = true;
    REQUIRE(world.connect(at(server.port()), ssh));
    CHECK(world.known() == server.known_hosts_line());
    const auto mode = std::filesystem::status(world.home() / "known_hosts").permissions();
    CHECK(static_cast<int>(mode) == 0600);
    CHECK(world.connect(at(server.port())));
    REQUIRE(world.connect(at(server.port()), ssh));
    CHECK(world.known() == server.known_hosts_line());
  }

  TEST_CASE("a changed host key is always refused, and the line of the old one is named") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key);
    make_key(world.folder / "other");
    const auto other = read_text(world.folder / "other.pub");
    const std::string stale = fmt::format("# comment\n[127.0.0.1]:{} {}", server.port(), other);
    world.know(stale);
    config::SshConfig ssh;
    for (const bool accept_new : {false, true}) {
      CAPTURE(accept_new);
      ssh.accept_new = accept_new;
      const auto connection = world.connect(at(server.port()), ssh);
      REQUIRE_FALSE(connection);
      CHECK(connection.error().code == ErrorCode::host_key);
      CHECK(contains(connection.error().message, "has CHANGED"));
      CHECK(contains(connection.error().message,
                     (world.home() / "known_hosts").string() + ":2 has another"));
      CHECK(contains(connection.error().message, "ssh-keygen -R '[127.0.0.1]:"));
    }
    CHECK(world.known() == stale);
  }

  TEST_CASE("a server with several keys is asked for the one that is known") {
    World world;
    SshdOptions options;
    options.host_key_types = {"ed25519", "ecdsa", "rsa"};
    const Sshd server(world.folder / "sshd", world.public_key, options);
    for (const char* type : {"ed25519", "ecdsa", "rsa"}) {
      CAPTURE(type);
      world.know(server.known_hosts_line(type));
      const auto connection = world.connect(at(server.port()));
      CHECK_MESSAGE(connection, (connection ? "" : connection.error().message));
    }
  }

  TEST_CASE("only a key of another type is known, and the server does not show it: refused") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key);
    make_key(world.folder / "other", "ecdsa");
    world.know(
        fmt::format("[127.0.0.1]:{} {}", server.port(), read_text(world.folder / "other.pub")));
    config::SshConfig ssh;
    ssh.accept_new = true;
    const auto connection = world.connect(at(server.port()), ssh);
    REQUIRE_FALSE(connection);
    CHECK(connection.error().code == ErrorCode::host_key);
    CHECK(contains(connection.error().message, "another type"));
  }

  TEST_CASE("hashed, wildcard, revoked and aliased entries of known_hosts") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key);
    world.know(server.known_hosts_line());
    SUBCASE("hashed by ssh-keygen -H") {
      CHECK(run({"ssh-keygen", "-H", "-f", (world.home() / "known_hosts").string()}).code == 0);
      CHECK(world.known().starts_with("|1|"));
      CHECK(world.connect(at(server.port())));
    }
    SUBCASE("wildcard") {
      world.know("[127.0.0.*]:* " + server.host_key() + "\n");
      CHECK(world.connect(at(server.port())));
    }
    SUBCASE("revoked beats known") {
      world.know(server.known_hosts_line() + "@revoked * " + server.host_key() + "\n");
      const auto connection = world.connect(at(server.port()));
      REQUIRE_FALSE(connection);
      CHECK(connection.error().code == ErrorCode::host_key);
      CHECK(contains(connection.error().message, "known_hosts:2"));
    }
    SUBCASE("without the port, as ssh accepts it; not for an alias") {
      world.know("127.0.0.1 " + server.host_key() + "\n");
      CHECK(world.connect(at(server.port())));
      world.know(world.known() + "@revoked 127.0.0.1 " + server.host_key() + "\n");
      const auto revoked = world.connect(at(server.port()));
      REQUIRE_FALSE(revoked);
      CHECK(contains(revoked.error().message, "known_hosts:2"));
      world.know("127.0.0.1 " + server.host_key() + "\n");
      world.configure("Host *\n  HostKeyAlias farm\n");
      CHECK_FALSE(world.connect(at(server.port())));
    }
    SUBCASE("HostKeyAlias") {
      world.know("farm " + server.host_key() + "\n");
      world.configure("Host *\n  HostKeyAlias farm\n");
      CHECK(world.connect(at(server.port())));
    }
    SUBCASE("known_hosts_file of the config wins") {
      const auto file = world.folder / "hosts.known";
      write_text(file, world.known());
      world.know("");
      config::SshConfig ssh;
      ssh.known_hosts_file = file;
      CHECK(world.connect(at(server.port()), ssh));
      CHECK_FALSE(world.connect(at(server.port())));
    }
  }

  TEST_CASE("ssh_config decides name, port, user, key and known_hosts") {
    World world;
    const Sshd server(world.folder / "sshd", make_key(world.folder / "farm_key"));
    write_text(world.folder / "farm_known", server.known_hosts_line());
    std::filesystem::create_directories(world.home() / "config.d");
    write_text(world.home() / "config.d/farm.conf",
               fmt::format("Host node-?\n  HostName 127.0.0.1\n  Port {}\n  IdentityFile {}\n"
                           "  UserKnownHostsFile {}\n  User {}\n",
                           server.port(), (world.folder / "farm_key").string(),
                           (world.folder / "farm_known").string(), world.environment.user));
    world.environment.user = "nobody-of-this-name";
    world.configure("Include config.d/*.conf\n");
    const auto connection = world.connect("node-1");
    CHECK_MESSAGE(connection, (connection ? "" : connection.error().message));
    CHECK_FALSE(world.connect("node-11"));
  }

  TEST_CASE("no key accepted: auth, with what was tried and what the server allows") {
    World world;
    const Sshd server(world.folder / "sshd", make_key(world.folder / "not_ours"));
    world.know(server.known_hosts_line());
    const auto connection = world.connect(at(server.port()));
    REQUIRE_FALSE(connection);
    CHECK(connection.error().code == ErrorCode::auth);
    CHECK(
        contains(connection.error().message, "refused: " + (world.home() / "id_ed25519").string()));
    CHECK(contains(connection.error().message, "the server allows publickey"));
    CHECK(contains(connection.error().message, "authorized_keys"));
  }

  TEST_CASE("no key at all is an auth error that says so") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key);
    world.know(server.known_hosts_line());
    std::filesystem::remove(world.home() / "id_ed25519");
    std::filesystem::remove(world.home() / "id_ed25519.pub");
    const auto connection = world.connect(at(server.port()));
    REQUIRE_FALSE(connection);
    CHECK(connection.error().code == ErrorCode::auth);
    CHECK(contains(connection.error().message, "no key to offer"));
  }

  TEST_CASE("keys of every common type sign in") {
    World world;
    for (const char* type : {"ed25519", "ecdsa", "rsa"}) {
      CAPTURE(type);
      const auto file = world.folder / fmt::format("key_{}", type);
      const Sshd server(world.folder / fmt::format("sshd_{}", type), make_key(file, type));
      world.know(server.known_hosts_line());
      config::SshConfig ssh;
      ssh.identity_file = file;
      const auto connection = world.connect(at(server.port()), ssh);
      CHECK_MESSAGE(connection, (connection ? "" : connection.error().message));
    }
  }

  TEST_CASE("an identity file that is not there is an error, though another key would do") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key);
    world.know(server.known_hosts_line());
    CHECK(world.connect(at(server.port())));
    config::SshConfig ssh;
    ssh.identity_file = (world.folder / "no_such_key").string();
    const auto connection = world.connect(at(server.port()), ssh);
    REQUIRE_FALSE(connection);
    CHECK(connection.error().code == ErrorCode::config);
    CHECK(contains(connection.error().message, "runner.ssh.identity_file: " + ssh.identity_file));
  }

  TEST_CASE("a key that others can read is not used") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key);
    world.know(server.known_hosts_line());
    std::filesystem::permissions(world.home() / "id_ed25519", std::filesystem::perms(0644));
    const auto connection = world.connect(at(server.port()));
    REQUIRE_FALSE(connection);
    CHECK(connection.error().code == ErrorCode::auth);
    CHECK(contains(connection.error().message, "mode 0644"));
  }

  TEST_CASE("another user's key that a group can read is used, as ssh does") {
    const TempDir folder;
    make_key(folder / "shared");
    std::string file = folder / "shared";
    std::string problem;
    if (::getuid() == 0) {
      REQUIRE(::chmod(file.c_str(), 0640) == 0);
      REQUIRE(::chown(file.c_str(), 12345, 12345) == 0);
    } else {
      file = "/etc/passwd";  // root's, and open to all
      problem = "is not a private key that libssh can read";
    }
    ssh::KeyStore keys;
    CHECK(keys.load(file).problem == problem);
  }

  TEST_CASE("an encrypted key without an agent is explained, not asked for") {
    World world;
    const auto file = world.folder / "locked";
    const Sshd server(world.folder / "sshd", make_key(file, "ed25519", "secret"));
    world.know(server.known_hosts_line());
    config::SshConfig ssh;
    ssh.identity_file = file;
    const auto connection = world.connect(at(server.port()), ssh);
    REQUIRE_FALSE(connection);
    CHECK(connection.error().code == ErrorCode::auth);
    CHECK(contains(connection.error().message, "needs a passphrase"));
    CHECK(contains(connection.error().message, "`ssh-add " + file.string() + "`"));
  }

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
