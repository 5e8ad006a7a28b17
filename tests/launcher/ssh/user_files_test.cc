// A home folder on a network file system whose server is down: reads of ssh's files block. A named
// pipe without a writer blocks its reader in the same way.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <boost/asio/steady_timer.hpp>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/base/fd.h"
#include "tests/launcher/ssh/fixture.h"

namespace sortie::launcher::testing {
namespace {

namespace asio = boost::asio;

/// A file that blocks its readers as long as this object exists.
class StalledFile {
 public:
  explicit StalledFile(std::filesystem::path path) : path_(std::move(path)) {
    std::filesystem::remove(path_);
    REQUIRE(::mkfifo(path_.c_str(), 0600) == 0);
  }
  ~StalledFile() { const Fd writer(::open(path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC)); }
  StalledFile(const StalledFile&) = delete;
  StalledFile& operator=(const StalledFile&) = delete;

 private:
  const std::filesystem::path path_;
};

/// Counts how often the I/O thread comes to it, as heartbeats do.
asio::awaitable<void> beat(asio::any_io_executor executor, std::shared_ptr<int> beats) {
  asio::steady_timer timer(executor);
  for (;;) {
    timer.expires_after(10ms);
    const auto [error] = co_await timer.async_wait(kToken);
    if (error) co_return;
    ++*beats;
  }
}

TEST_SUITE("launcher/ssh") {
  TEST_CASE("a home folder that does not answer stops no other connection") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key);
    world.know(server.known_hosts_line());
    config::SshConfig ssh;
    std::optional<StalledFile> stalled;
    SUBCASE("ssh_config") {
      stalled.emplace(world.home() / "config");
    }
    SUBCASE("a private key") {
      stalled.emplace(world.home() / "id_ed25519");
    }
    const auto beats = std::make_shared<int>(0);
    spawn(world.io, beat(world.io.get_executor(), beats));
    const auto begun = std::chrono::steady_clock::now();
    {
      const auto transport =
          make_ssh_transport(world.io.get_executor(), ssh, world.environment, 500ms);
      const auto host = fmt::format("127.0.0.1:{}", server.port());
      const auto connection = finish(world.io, transport->connect(host));
      REQUIRE_FALSE(connection);
      CHECK(connection.error().code == ErrorCode::timeout);
      CHECK(connection.error().message.contains((world.home()).string() +
                                                " have not answered within 500 ms"));
      CHECK(*beats >= 10);
      // While the stall lasts, it is not waited for again.
      const auto again = std::chrono::steady_clock::now();
      CHECK_FALSE(finish(world.io, transport->connect(host)));
      CHECK(std::chrono::steady_clock::now() - again < 400ms);
    }
    // The end of the transport does not wait for the disk either.
    CHECK(std::chrono::steady_clock::now() - begun < 20s);
  }

  TEST_CASE("a connection is made once the home folder answers again") {
    World world;
    const Sshd server(world.folder / "sshd", world.public_key);
    world.know(server.known_hosts_line());
    const auto key = read_text(world.home() / "id_ed25519");
    auto stalled = std::make_unique<StalledFile>(world.home() / "config");
    const auto transport =
        make_ssh_transport(world.io.get_executor(), {}, world.environment, 200ms);
    const auto host = fmt::format("127.0.0.1:{}", server.port());
    REQUIRE_FALSE(finish(world.io, transport->connect(host)));
    world.spend(300ms);
    stalled.reset();  // the read returns
    std::filesystem::remove(world.home() / "config");
    world.spend(200ms);
    const auto connection = finish(world.io, transport->connect(host));
    REQUIRE_MESSAGE(connection, connection.error().message);
  }
}

}  // namespace
}  // namespace sortie::launcher::testing
