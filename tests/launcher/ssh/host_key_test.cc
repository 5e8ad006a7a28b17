// Host keys: which are accepted and recorded, and what a refusal says.
#include <doctest/doctest.h>
#include <fmt/core.h>

#include "tests/launcher/ssh/fixture.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::launcher;
using namespace sortie::launcher::testing;

namespace {

using sortie::test::contains;

/// The texts between backquotes.
std::vector<std::string> commands_in(const std::string& message) {
  std::vector<std::string> commands;
  for (std::size_t at = message.find('`'); at != message.npos;) {
    const std::size_t end = message.find('`', at + 1);
    if (end == message.npos) break;
    commands.push_back(message.substr(at + 1, end - at - 1));
    at = message.find('`', end + 1);
  }
  return commands;
}

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

  TEST_CASE("commands in messages about host keys work with any path of the known_hosts file") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key);
    config::SshConfig ssh;
    ssh.known_hosts_file = (world.folder / "ann's known hosts").string();
    std::string alias;
    SUBCASE("by the host's name: ssh-keyscan") {}
    SUBCASE("by an alias: echo") {
      alias = "farm";
      world.configure("Host *\n  HostKeyAlias farm\n");
    }
    make_key(world.folder / "other");
    const std::string name =
        alias.empty() ? fmt::format("[{}]:{}", "127.0.0.1", server.port()) : alias;
    write_text(ssh.known_hosts_file, name + " " + read_text(world.folder / "other.pub"));
    const auto refusal = [&] {
      const auto connection = world.connect(at(server.port()), ssh);
      return connection ? "" : connection.error().message;
    };
    const auto forget = commands_in(refusal());
    REQUIRE(forget.size() == 2);
    CHECK(forget[0].starts_with("ssh-keygen -R "));
    CHECK(run({"sh", "-c", forget[0]}).code == 0);
    const auto trust = commands_in(refusal());
    REQUIRE(trust.size() == 1);
    CHECK(trust[0] == forget[1]);
    CHECK(trust[0].starts_with(alias.empty() ? "ssh-keyscan " : "echo "));
    CHECK(run({"sh", "-c", trust[0]}).code == 0);
    CHECK(refusal() == "");
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
}
