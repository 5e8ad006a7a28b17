// sortie-pmix with a runner that breaks the protocol, exits, or requests too much.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "common/wire/codec.h"
#include "tests/runner/pmix/emulated_hosts.h"

using namespace sortie;
using namespace sortie::test;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

/// A single sortie-pmix with a stream to it.
struct Lone {
  Fd stream;
  Child server;
  wire::FrameDecoder decoder;

  explicit Lone(const char* libpmix = nullptr) {
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      dup2(pair[1], 0);
      dup2(pair[1], 1);
      dup2(open("/dev/null", O_WRONLY), 2);
      if (libpmix) setenv("SORTIE_LIBPMIX", libpmix, 1);
      execl(SORTIE_PMIX_BINARY, "sortie-pmix", nullptr);
      _exit(99);
    }
    close(pair[1]);
    stream = Fd(pair[0]);
    server = Child(pid);
    const timeval limit{10, 0};
    setsockopt(stream.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }

  void send(std::string_view bytes) const {
    REQUIRE(::send(stream.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  }
  /// The next message; nullopt at the end of the stream.
  std::optional<wire::Message> next() {
    while (true) {
      auto frame = decoder.next();
      REQUIRE(frame);
      if (*frame) return wire::decode(**frame).value();
      char bytes[4096];
      const ssize_t got = read(stream.get(), bytes, sizeof bytes);
      REQUIRE(got >= 0);
      if (got == 0) return std::nullopt;
      decoder.feed({bytes, static_cast<std::size_t>(got)});
    }
  }
  wire::RunnerError error() {
    auto message = next();
    REQUIRE(message);
    REQUIRE(std::holds_alternative<wire::RunnerError>(*message));
    return std::get<wire::RunnerError>(*message);
  }
};

struct TempDir {
  fs::path path = fs::temp_directory_path() / ("sortie-pmix-lone-" + std::to_string(getpid()));
  TempDir() { fs::create_directory(path); }
  ~TempDir() { fs::remove_all(path); }
};

wire::PmixSetup good_setup(const TempDir& dir) {
  return {"lone", "a", {"a", "b"}, {"0,1", "2"}, 3, {0, 1}, dir.path.string()};
}

}  // namespace

TEST_CASE("bytes that are no frames end the server with an error") {
  Lone lone;
  lone.send("Last login: Fri Nov 20 2026 on pts/0\r\n");
  CHECK(lone.error().code == "protocol");
  CHECK(lone.server.wait(20s).value().to_string() == "exit code 1");
}

TEST_CASE("a first message other than PmixSetup ends the server with an error") {
  Lone lone;
  lone.send(wire::encode(wire::Heartbeat()));
  CHECK(lone.error().message == "the first message must be PmixSetup");
  CHECK(lone.server.wait(20s).value().to_string() == "exit code 1");
}

TEST_CASE("a stream that ends within a frame is an error, one that ends between frames is not") {
  {
    Lone lone;
    lone.send(wire::encode(wire::Heartbeat()).substr(0, 5));
    shutdown(lone.stream.get(), SHUT_WR);
    CHECK(lone.error().message == "stream from the runner: it ended within a frame");
    CHECK(lone.server.wait(20s).value().to_string() == "exit code 1");
  }
  Lone lone;
  shutdown(lone.stream.get(), SHUT_WR);
  CHECK(!lone.next());
  CHECK(lone.server.wait(20s).value().to_string() == "exit code 0");
}

TEST_CASE("a host without libpmix gives an error that says what to install") {
  const TempDir dir;
  Lone lone("libpmix-not-here.so.2");
  lone.send(wire::encode(good_setup(dir)));
  const wire::RunnerError error = lone.error();
  CHECK(error.code == "unsupported");
  CHECK(error.message.starts_with("libpmix not found: libpmix-not-here.so.2: "));
  CHECK(error.message.ends_with("; install libpmix2 (Debian, Ubuntu) or pmix (Fedora, RHEL)"));
  CHECK(lone.server.wait(20s).value().to_string() == "exit code 3");
}

TEST_CASE("a library that is not libpmix is named, with what it lacks") {
  const TempDir dir;
  Lone lone("libm.so.6");
  lone.send(wire::encode(good_setup(dir)));
  CHECK(lone.error().message ==
        "libm.so.6 is no usable libpmix: it has no PMIx_Get_version; install libpmix 3 or newer");
}

TEST_CASE("a setup that contradicts itself is refused before libpmix sees it") {
  const TempDir dir;
  const auto refused = [&](auto change) {
    wire::PmixSetup setup = good_setup(dir);
    change(setup);
    Lone lone;
    lone.send(wire::encode(setup));
    return lone.error().message;
  };
  CHECK(refused([](auto& s) { s.nspace.clear(); }) == "PmixSetup: nspace must have 1 to 255 bytes");
  CHECK(refused([](auto& s) { s.host = "c"; }) == "PmixSetup: host 'c' is not one of node_hosts");
  CHECK(refused([](auto& s) { s.world_size = 4; }) == "PmixSetup: rank 3 is on no host");
  CHECK(refused([](auto& s) { s.local_ranks = {0}; }) ==
        "PmixSetup: local_ranks are not the ranks of host 'a'");
  CHECK(refused([](auto& s) { s.node_ranks[1] = "2,"; }) == "PmixSetup: '2,' is no list of ranks");
  CHECK(refused([](auto& s) { s.node_ranks.pop_back(); }) ==
        "PmixSetup: 2 hosts but 1 lists of ranks");
  CHECK(refused([](auto& s) { s.node_hosts[1] = "a"; }) ==
        "PmixSetup: host name 'a' is empty, not plain or given twice");
  CHECK(refused([](auto& s) { s.node_ranks[1] = "1"; }) ==
        "PmixSetup: rank 1 of host 'b' is beyond world_size 3 or given twice");
}

TEST_CASE("answers to questions that were not asked end the server, its folder empty") {
  const TempDir dir;
  for (const wire::Message& answer :
       {wire::Message(wire::PmixFenceDone{"0-2#9", 0, ""}),
        wire::Message(wire::PmixModexReply{5, 2, 0, ""}), wire::Message(wire::Start{})}) {
    CAPTURE(wire::message_name(answer));
    Lone lone;
    lone.send(wire::encode(good_setup(dir)));
    auto ready = lone.next();
    REQUIRE(ready);
    REQUIRE(std::holds_alternative<wire::PmixReady>(*ready));
    lone.send(wire::encode(answer));
    CHECK(lone.error().code == "protocol");
    CHECK(lone.server.wait(20s).value().to_string() == "exit code 1");
    CHECK(fs::is_empty(dir.path));
  }
}

TEST_CASE("a modex request for a rank of another host is answered, not kept") {
  const TempDir dir;
  Lone lone;
  lone.send(wire::encode(good_setup(dir)));
  REQUIRE(lone.next());
  lone.send(wire::encode(wire::PmixModexRequest{77, 2, {}, 0}));
  auto reply = lone.next();
  REQUIRE(reply);
  REQUIRE(std::holds_alternative<wire::PmixModexReply>(*reply));
  CHECK(std::get<wire::PmixModexReply>(*reply).id == 77);
  CHECK(std::get<wire::PmixModexReply>(*reply).status != 0);
}

TEST_CASE("the environment names each rank once and is complete") {
  const TempDir dir;
  Lone lone;
  lone.send(wire::encode(good_setup(dir)));
  auto message = lone.next();
  REQUIRE(message);
  const auto& ready = std::get<wire::PmixReady>(*message);
  CHECK(ready.version.starts_with(std::to_string(4) + "."));
  const auto has = [&](const std::string& line) {
    return std::ranges::count(ready.env, line) == 1;
  };
  CHECK(has("JSM_JSRUN_PORT=1"));
  CHECK(has("PMIX_NAMESPACE=lone"));
  CHECK(has("#rank 0"));
  CHECK(has("#rank 1"));
  CHECK(has("PMIX_RANK=0"));
  CHECK(has("PMIX_RANK=1"));
}

TEST_CASE("TERM ends the server, INT does not: ranks may still need it") {
  const TempDir dir;
  Lone lone;
  lone.send(wire::encode(good_setup(dir)));
  REQUIRE(lone.next());
  kill(lone.server.pid(), SIGINT);
  CHECK(!lone.server.wait(300ms));
  kill(lone.server.pid(), SIGTERM);
  CHECK(lone.server.wait(20s).value().to_string() == "exit code 0");
  CHECK(fs::is_empty(dir.path));
}

TEST_CASE("a server whose runner was killed ends, though others hold its stream") {
  const TempDir dir;
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);  // this process keeps both ends open
  int pids[2];
  REQUIRE(pipe(pids) == 0);
  const pid_t runner = fork();
  if (runner == 0) {
    const pid_t server = fork();
    if (server == 0) {
      dup2(pair[1], 0);
      dup2(pair[1], 1);
      execl(SORTIE_PMIX_BINARY, "sortie-pmix", nullptr);
      _exit(99);
    }
    if (write(pids[1], &server, sizeof server) != sizeof server) _exit(99);
    while (true) pause();
  }
  Child runner_process(runner);
  pid_t server = 0;
  REQUIRE(read(pids[0], &server, sizeof server) == sizeof server);
  const Fd server_end(static_cast<int>(syscall(SYS_pidfd_open, server, 0)));
  REQUIRE(server_end);
  const std::string setup = wire::encode(good_setup(dir));
  REQUIRE(write(pair[0], setup.data(), setup.size()) == static_cast<ssize_t>(setup.size()));
  char byte = 0;
  REQUIRE(read(pair[0], &byte, 1) == 1);  // the server is ready
  kill(runner, SIGKILL);
  runner_process.wait(20s);
  pollfd ended = {server_end.get(), POLLIN, 0};
  CHECK(poll(&ended, 1, 20'000) == 1);
  CHECK(fs::is_empty(dir.path));
  for (int fd : {pair[0], pair[1], pids[0], pids[1]}) close(fd);
}
