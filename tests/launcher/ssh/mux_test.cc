// Hosts through OpenSSH masters: real ones (`ssh -M`) with a real sshd, and a fake one for behavior
// that a real one does not show.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>

#include "launcher/ssh/mux_wire.h"
#include "tests/launcher/ssh/fixture.h"

using namespace sortie;
using namespace sortie::launcher;
using namespace sortie::launcher::testing;
namespace asio = boost::asio;

namespace {

// A user whose ssh and Sortie read the same config.
struct MuxWorld : World {
  explicit MuxWorld(const SshdOptions& options = {})
      : server(folder / "sshd", public_key, options) {
    know(server.known_hosts_line());
    use("");
  }
  ~MuxWorld() {
    if (std::filesystem::exists(socket())) end_master();
  }
  // `more`: additional lines in the host's block.
  void use(const std::string& more) {
    configure(
        fmt::format("Host target\n HostName 127.0.0.1\n Port {}\n IdentityFile {}\n"
                    " IdentitiesOnly yes\n UserKnownHostsFile {}\n"
                    " GlobalKnownHostsFile /dev/null\n ControlPath {}\n {}\n",
                    server.port(), (home() / "id_ed25519").string(),
                    (home() / "known_hosts").string(), socket().string(), more));
  }
  std::filesystem::path socket() const { return home() / "master"; }
  config::SshConfig ssh() const {
    config::SshConfig ssh;
    ssh.config_file = (home() / "config").string();
    return ssh;
  }
  std::vector<std::string> ssh_words(const std::vector<std::string>& more) const {
    std::vector<std::string> words = {"ssh", "-F", (home() / "config").string()};
    words.insert(words.end(), more.begin(), more.end());
    words.push_back("target");
    return words;
  }
  void start_master() {
    const auto started = run(ssh_words({"-M", "-N", "-f", "-n", "-E", "/dev/null"}));
    REQUIRE_MESSAGE(started.code == 0, started.output);
  }
  void end_master() { run(ssh_words({"-O", "exit"})); }
  // Makes further authentication fail.
  void forget_key() { std::filesystem::remove(home() / "id_ed25519"); }
  std::unique_ptr<Connection> reach() {
    if (!transport_) transport_ = transport(ssh());
    auto connection = finish(io, transport_->connect("target"));
    REQUIRE_MESSAGE(connection, (connection ? "" : connection.error().message));
    return std::move(*connection);
  }
  Sshd server;
  std::unique_ptr<Transport> transport_;
};

// A target behind a jump host that accepts only another user's key, and a master for the jump host
// that this other user has authenticated.
struct BehindMaster : MuxWorld {
  explicit BehindMaster(const SshdOptions& options = {})
      : jump(folder / "jump", stranger.public_key, options) {
    know(server.known_hosts_line() + jump.known_hosts_line());
    configure(hosts(stranger.home() / "id_ed25519", "jump"));
    const auto started = run(words({"-M", "-N", "-f", "-n", "-E", "/dev/null"}));
    REQUIRE_MESSAGE(started.code == 0, started.output);
    configure(hosts(home() / "id_ed25519", "jump"));
  }
  ~BehindMaster() { run(words({"-O", "exit"})); }

  // `key`: key for the jump host.
  std::string hosts(const std::filesystem::path& key, const std::string& jumps) const {
    return fmt::format(
        "Host jump\n HostName 127.0.0.1\n Port {}\n ControlPath {}\n IdentityFile {}\n"
        " UserKnownHostsFile {}\n IdentitiesOnly yes\n"
        "Host target\n HostName 127.0.0.1\n Port {}\n ProxyJump {}\n IdentityFile {}\n",
        jump.port(), socket().string(), key.string(), (home() / "known_hosts").string(),
        server.port(), jumps, (home() / "id_ed25519").string());
  }
  std::vector<std::string> words(std::vector<std::string> more) const {
    more.insert(more.begin(), {"ssh", "-F", (home() / "config").string()});
    more.push_back("jump");
    return more;
  }

  World stranger;
  Sshd jump;
};

// Serves its clients one after another with `serve`.
class FalseMaster {
 public:
  using Serve = std::function<void(int)>;
  FalseMaster(const std::filesystem::path& path, Serve serve)
      : listener_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener_, 8) != 0)
      throw std::runtime_error("a false master can not listen");
    thread_ = std::thread([this, serve] {
      for (int fd; (fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
        const timeval limit{10, 0};
        ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        serve(fd);
        ::close(fd);
      }
    });
  }
  ~FalseMaster() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }

 private:
  int listener_;
  std::thread thread_;
};

void tell(int fd, const std::string& bytes) {
  (void)::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

std::string hear(int fd, std::size_t size) {
  std::string bytes(size, '\0');
  bytes.resize(
      static_cast<std::size_t>(std::max<ssize_t>(0, ::recv(fd, bytes.data(), size, MSG_WAITALL))));
  return bytes;
}

void hear_message(int fd) {
  const std::string head = hear(fd, 4);
  if (head.size() == 4)
    if (const auto length = ssh::mux_length(head)) hear(fd, *length);
}

void hear_until_end(int fd) {
  while (!hear(fd, 1).empty()) {
  }
}

std::string message(std::initializer_list<std::uint32_t> numbers, const std::string& text = "") {
  std::string body;
  const auto put = [&body](std::uint32_t number) {
    for (int shift = 24; shift >= 0; shift -= 8) body += static_cast<char>(number >> shift);
  };
  put(static_cast<std::uint32_t>(numbers.size() * 4 + (text.empty() ? 0 : 4 + text.size())));
  for (const std::uint32_t number : numbers) put(number);
  if (!text.empty()) put(static_cast<std::uint32_t>(text.size()));
  return body + text;
}

const std::string kHello = ssh::mux_hello();
const std::string kAlive = message({0x80000005, 1, 4711});

// Greets like a master, receives the request and its descriptors, and answers.
FalseMaster::Serve answering(const std::string& answer) {
  return [answer](int fd) {
    tell(fd, kHello + kAlive);
    for (int i = 0; i < 3; ++i) hear_message(fd);  // hello, alive check, session
    hear(fd, 1);
    hear(fd, 1);
    hear(fd, 1);
    tell(fd, answer);
  };
}

}  // namespace

TEST_SUITE("launcher") {
  TEST_CASE("a master that lives: commands without a sign-in") {
    MuxWorld world;
    world.start_master();
    world.forget_key();
    auto connection = world.reach();
    CHECK(connection->through() == world.socket().string());
    const auto first = world.run_command(*connection, "echo one; echo two >&2; exit 7");
    REQUIRE(first);
    CHECK(first->output == "one\n");
    CHECK(first->status.kind == ProcessStatus::Kind::exited);
    CHECK(first->status.code == 7);
    CHECK(connection->peer_address() == "127.0.0.1");
    const auto channel = world.start(*connection, "echo why >&2; exec cat");
    const std::string sent = std::string(3 << 20, 'm') + '\0';
    asio::co_spawn(world.io, channel->write(sent), [](std::exception_ptr, Result<>) {});
    std::string got;
    std::array<char, 65536> buffer;
    while (got.size() < sent.size()) {
      const auto count = finish(world.io, channel->read_some(buffer));
      REQUIRE(count);
      REQUIRE(*count > 0);
      got.append(buffer.data(), *count);
    }
    CHECK(got == sent);
    CHECK(channel->stderr_tail() == "why\n");
    // Masters do not report signals.
    const auto killed = world.run_command(*connection, "kill -9 $$");
    REQUIRE(killed);
    CHECK(killed->status.kind == ProcessStatus::Kind::lost);
    CHECK(world.until([&] { return world.server.sessions().size() == 1; }));
  }

  TEST_CASE("a master with as many sessions as its server allows: the host is signed in to") {
    SshdOptions options;
    options.config = {"MaxSessions 2"};
    MuxWorld world(options);
    world.start_master();
    const auto one = world.reach(), two = world.reach();
    const auto first = world.start(*one, "cat"), second = world.start(*two, "cat");
    const auto three = world.reach();
    const auto ran = world.run_command(*three, "echo here");
    REQUIRE(ran);
    CHECK(ran->output == "here\n");
    CHECK(three->through().empty());
    CHECK(two->through() == world.socket().string());
    world.forget_key();
    world.transport_.reset();  // it holds the key in memory
    const auto four = world.reach();
    const auto refused = finish(world.io, four->exec("echo here"));
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::auth);
    CHECK(refused.error().message.contains("MaxSessions"));
    CHECK(refused.error().message.contains(world.socket().string()));
  }

  TEST_CASE("a master that ends takes its connections with it, and that is said") {
    MuxWorld world;
    world.start_master();
    const auto connection = world.reach();
    const auto channel = world.start(*connection, "echo begun; exec cat");
    std::array<char, 64> buffer;
    REQUIRE(finish(world.io, channel->read_some(buffer)));
    world.end_master();
    const auto read = finish(world.io, channel->read_some(buffer));
    REQUIRE_FALSE(read);
    CHECK(read.error().code == ErrorCode::lost);
    CHECK(read.error().message.contains(world.socket().string()));
    const auto status = finish(world.io, channel->wait());
    REQUIRE_FALSE(status);
    CHECK(status.error().code == ErrorCode::lost);
    // The socket has disappeared too, so Sortie connects by itself.
    const auto again = world.reach();
    CHECK(again->through().empty());
    CHECK(world.run_command(*again, "true"));
  }

  TEST_CASE("closing a channel is the end of its command's stdin, and no other's") {
    MuxWorld world;
    world.start_master();
    const auto connection = world.reach();
    const auto stays = world.start(*connection, "echo on; exec cat");
    const auto file = world.folder / "ended";
    auto goes = world.start(*connection, fmt::format("echo on; cat; echo > {}", file.string()));
    std::array<char, 64> buffer;
    REQUIRE(finish(world.io, goes->read_some(buffer)));  // otherwise its output has no reader
    goes.reset();
    CHECK(world.until([&] { return std::filesystem::exists(file); }));
    const auto count = finish(world.io, stays->read_some(buffer));
    REQUIRE(count);
    CHECK(std::string(buffer.data(), *count) == "on\n");
  }

  TEST_CASE("ControlMaster and ControlPersist: a master is made, used again, and stays") {
    MuxWorld world;
    world.use("ControlMaster auto\n ControlPersist 1m");
    {
      // The socket file that a dead master leaves.
      const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      std::strncpy(address.sun_path, world.socket().c_str(), sizeof address.sun_path - 1);
      REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
      ::close(fd);
    }
    for (int i = 0; i < 2; ++i) {
      const auto connection = world.reach();
      CHECK(connection->through() == world.socket().string());
      const auto ran = world.run_command(*connection, "echo here");
      REQUIRE(ran);
      CHECK(ran->output == "here\n");
      world.transport_.reset();
    }
    CHECK(world.until([&] { return world.server.sessions().size() == 1; }));
    CHECK(run(world.ssh_words({"-O", "check"})).code == 0);
    config::SshConfig alone = world.ssh();
    alone.control = "no";
    const auto connection = world.connect("target", alone);
    REQUIRE(connection);
    CHECK((*connection)->through().empty());
  }

  TEST_CASE("no master can be made: the host is signed in to, or both are named") {
    MuxWorld world;
    world.use("ControlMaster auto\n ControlPersist 1m\n ProxyCommand false");
    config::SshConfig quick = world.ssh();
    quick.handshake_timeout = 300ms;
    const auto other = world.connect("target", quick);
    REQUIRE_FALSE(other);
    MESSAGE(other.error().message);
    CHECK(other.error().message.contains("ControlPersist"));
    world.use("ControlMaster auto\n ControlPersist 1m");
    const std::string path = std::getenv("PATH");
    ::setenv("PATH", world.folder.path().c_str(), 1);  // no ssh in this PATH
    const auto connection = world.reach();
    ::setenv("PATH", path.c_str(), 1);
    CHECK(connection->through().empty());
    CHECK_FALSE(std::filesystem::exists(world.socket()));
  }

  TEST_CASE("a folder where others may write: no master is used there") {
    MuxWorld world;
    world.start_master();
    ::chmod(world.home().c_str(), 0777);
    const auto connection = world.reach();
    CHECK(connection->through().empty());
    ::chmod(world.home().c_str(), 0700);
    CHECK(world.reach()->through() == world.socket().string());
  }

  TEST_CASE("a jump host with a master is not signed in to") {
    BehindMaster world;
    const auto connection = world.reach();
    CHECK(connection->through().empty());  // the target itself is reached without a master
    const auto ran = world.run_command(*connection, "head -c 1000000 /dev/zero");
    REQUIRE(ran);
    CHECK(ran->output == std::string(1'000'000, '\0'));
  }

  TEST_CASE("ControlPersist of a jump host: its master is made, used again, and stays") {
    MuxWorld world;
    SshdOptions verbose;
    verbose.config = {"LogLevel VERBOSE"};
    const Sshd jump(world.folder / "jump", world.public_key, verbose);
    world.know(world.server.known_hosts_line() + jump.known_hosts_line());
    world.configure(fmt::format(
        "Host jump\n Port {}\n ControlPath {}\n ControlMaster auto\n ControlPersist 1m\n"
        "Host target\n ProxyJump jump\n"
        "Host *\n HostName 127.0.0.1\n IdentityFile {}\n UserKnownHostsFile {}\n",
        jump.port(), world.socket().string(), (world.home() / "id_ed25519").string(),
        (world.home() / "known_hosts").string()));
    config::SshConfig ssh = world.ssh();
    ssh.port = world.server.port();  // for hosts, not for jump hosts
    for (int i = 0; i < 2; ++i) {
      world.transport_ = world.transport(ssh);
      const auto connection = world.reach();
      CHECK(connection->through().empty());  // the target itself is reached without a master
      const auto ran = world.run_command(*connection, "echo there");
      REQUIRE(ran);
      CHECK(ran->output == "there\n");
      world.transport_.reset();
    }
    CHECK(sortie::test::count_of(jump.log(), "Accepted publickey") == 1);
    const auto config = (world.home() / "config").string();
    CHECK(run({"ssh", "-F", config, "-O", "check", "jump"}).code == 0);
    run({"ssh", "-F", config, "-O", "exit", "jump"});
  }

  TEST_CASE("through the master of a jump host the target's host key is checked as ever") {
    BehindMaster world;
    world.know(world.jump.known_hosts_line());
    const auto refused = world.connect("target", world.ssh());
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::host_key);
  }

  TEST_CASE("a chain of jump hosts: the master of the first, and the others are signed in to") {
    BehindMaster world;
    SshdOptions verbose;
    verbose.config = {"LogLevel VERBOSE"};
    const Sshd second(world.folder / "second", world.public_key, verbose);
    world.know(world.known() + second.known_hosts_line());
    world.configure(fmt::format("Host second\n HostName 127.0.0.1\n Port {}\n IdentityFile {}\n",
                                second.port(), (world.home() / "id_ed25519").string()) +
                    world.hosts(world.home() / "id_ed25519", "jump,second"));
    const auto connection = world.reach();
    const auto ran = world.run_command(*connection, "echo there");
    REQUIRE(ran);
    CHECK(ran->output == "there\n");
    CHECK(second.log().contains("Accepted publickey"));
  }

  TEST_CASE("the master of a jump host that does not get there: the jump host is signed in to") {
    BehindMaster world({.config = {"AllowTcpForwarding no"}});
    const auto refused = world.connect("target", world.ssh());
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::auth);
    const std::string& why = refused.error().message;
    CHECK_MESSAGE(why.contains("jump host jump: "), why);
    CHECK_MESSAGE(why.contains("its ssh master at " + world.socket().string() +
                               " opens no connection to 127.0.0.1:"),
                  why);
  }

  TEST_CASE("masters that are none: the host is signed in to, and waits for nobody") {
    struct Fault {
      const char* name;
      FalseMaster::Serve serve;
    };
    const std::string opened = message({0x80000006, 2, 5});
    const std::vector<Fault> faults = {
        {"silent", hear_until_end},
        {"closes at once", [](int) {}},
        {"garbage", [](int fd) { tell(fd, std::string(4096, '\xff')); }},
        {"an HTTP server", [](int fd) { tell(fd, "HTTP/1.1 400 Bad Request\r\n\r\n"); }},
        {"another version",
         [](int fd) {
           tell(fd, message({1, 5}) + kAlive);
         }},
        {"no hello", [](int fd) { tell(fd, kAlive + kAlive); }},
        {"half a hello", [](int fd) { tell(fd, kHello.substr(0, 7)); }},
        {"not alive",
         [](int fd) {
           tell(fd, kHello + message({0x80000003, 1}, "no"));
         }},
        {"refuses", answering(message({0x80000003, 2}, "Session open refused by peer"))},
        {"denies", answering(message({0x80000002, 2}, "Permission denied"))},
        {"ends instead of an answer", answering("")},
        {"answers another request", answering(message({0x80000006, 9, 5}))},
        {"cut off", answering(message({0x80000003, 2}))},
    };
    MuxWorld world;
    config::SshConfig ssh = world.ssh();
    ssh.connect_timeout = 400ms;
    for (const Fault& fault : faults) {
      CAPTURE(fault.name);
      const FalseMaster master(world.socket(), fault.serve);
      const auto transport = world.transport(ssh);
      auto connection = finish(world.io, transport->connect("target"));
      REQUIRE_MESSAGE(connection, (connection ? "" : connection.error().message));
      const auto ran = world.run_command(**connection, "echo here");
      REQUIRE(ran);
      CHECK(ran->output == "here\n");
      CHECK((*connection)->through().empty());
      std::filesystem::remove(world.socket());
    }
  }

  TEST_CASE("a master that ends a session without a word of it: lost") {
    MuxWorld world;
    std::atomic<int> connections = 0;
    // Opens a session, sends half a message and ends. Does not answer later clients.
    FalseMaster master(world.socket(), [&](int fd) {
      if (connections++ > 0) return;
      answering(message({0x80000006, 2, 5}) + message({0x80000008, 5}) + std::string(1, '\0'))(fd);
    });
    const auto connection = world.reach();
    const auto channel = world.start(*connection, "true");
    std::array<char, 64> buffer;
    const auto read = finish(world.io, channel->read_some(buffer));
    REQUIRE_FALSE(read);
    CHECK(read.error().code == ErrorCode::lost);
    std::filesystem::remove(world.socket());
  }
}
