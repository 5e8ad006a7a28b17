// The built `sortie check`, and signals from a terminal.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "common/base/fd.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace sortie::launcher {
namespace {

using std::chrono::milliseconds;

template <class Condition>
bool soon(Condition condition) {
  for (int i = 0; i < 3000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

/// The state letter (R, S, T ...) from /proc/PID/stat.
char state_of(pid_t pid) {
  const std::string stat = test::read_text("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t name_end = stat.rfind(") ");
  return name_end == stat.npos ? '?' : stat[name_end + 2];
}

TEST_CASE("check: Ctrl-Z does not suspend it, Ctrl-C ends it") {
  // A host that accepts connections and never sends anything.
  const Fd mute(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(mute.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  const timeval patience{60, 0};
  ::setsockopt(mute.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  REQUIRE(::listen(mute.get(), 8) == 0);
  REQUIRE(::getsockname(mute.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const test::ScopedTempDir dir;
  testing::write_text(dir.str("ssh_config"), "Host mute\n  HostName 127.0.0.1\n  Port " +
                                                 std::to_string(ntohs(address.sin_port)) + "\n");
  testing::Child check({SORTIE_BINARY, "check", "--hosts", "mute", "--ssh-config",
                        dir.str("ssh_config"), "--timeout", "60", "--", "true"},
                       dir.str("log"));
  const Fd connected(::accept4(mute.get(), nullptr, nullptr, SOCK_CLOEXEC));
  REQUIRE(connected);
  ::kill(check.pid(), SIGTSTP);
  CHECK(soon([&] {
    return test::read_text(dir / "log").find("sortie: Ctrl-Z: not suspended") != std::string::npos;
  }));
  CHECK(check.running());
  CHECK(state_of(check.pid()) != 'T');
  ::kill(check.pid(), SIGINT);
  CHECK(soon([&] { return !check.running(); }));
}

}  // namespace
}  // namespace sortie::launcher
