#include "runner/streams/unix_listener.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace std::chrono_literals;

namespace {

Fd connect_to(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

}  // namespace

TEST_CASE("a listener without free descriptors does not spin, and accepts once there are some") {
  const test::ScopedTempDir dir;
  boost::asio::io_context io;
  std::vector<Fd> accepted;
  runner::UnixListener listener(io, [&](Fd fd) { accepted.push_back(std::move(fd)); });
  REQUIRE(listener.open(dir.str("socket"), 8));
  const Fd first = connect_to(dir.str("socket")), second = connect_to(dir.str("socket"));

  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{static_cast<rlim_t>(second.get()) + 1, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const std::size_t handlers = io.run_for(500ms);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(accepted.empty());
  CHECK(handlers >= 2);
  CHECK(handlers < 10);  // a few attempts; tens of thousands if it spins

  for (int i = 0; i < 50 && accepted.size() < 2; ++i) {
    io.restart();
    io.run_for(100ms);
  }
  CHECK(accepted.size() == 2);
  listener.close();
}
