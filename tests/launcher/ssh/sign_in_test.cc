// Signing in: which user, key and name the user's files choose, and what is said when no key signs
// in.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/ssh/keys.h"
#include "tests/launcher/ssh/fixture.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::launcher;
using namespace sortie::launcher::testing;

namespace {

using sortie::test::contains;

}  // namespace

TEST_SUITE("launcher") {
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
}
