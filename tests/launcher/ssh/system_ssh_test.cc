// runner.ssh.command: the system's ssh program against a real sshd.
#include <doctest/doctest.h>
#include <fmt/core.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>

#include "launcher/ssh/ssh_failure.h"
#include "launcher/ssh/system_ssh.h"
#include "tests/launcher/ssh/fixture.h"

using namespace sortie;
using namespace sortie::launcher;
using namespace sortie::launcher::testing;

namespace {

// A user whose ssh program reads only the files of this world.
struct SystemWorld : World {
  SystemWorld() : server(folder / "sshd", public_key) {
    know(server.known_hosts_line());
    use("127.0.0.1", server.port());
  }
  void use(const std::string& address, int port, const std::string& more = "") {
    configure(fmt::format(
        "Host target*\n HostName {}\n Port {}\n IdentityFile {}\n"
        " IdentitiesOnly yes\n UserKnownHostsFile {}\n"
        " GlobalKnownHostsFile /dev/null\n {}\n",
        address, port, (home() / "id_ed25519").string(), (home() / "known_hosts").string(), more));
  }
  config::SshConfig ssh() const {
    config::SshConfig ssh;
    ssh.command = {"ssh", "-o", "BatchMode=yes"};
    ssh.config_file = (home() / "config").string();
    return ssh;
  }
  Sshd server;
};

bool gone(pid_t pid) {
  return ::kill(pid, 0) != 0;
}

// The ssh processes that this process has started, including zombies.
std::vector<pid_t> children() {
  std::vector<pid_t> pids;
  std::istringstream lines(run({"pgrep", "-P", std::to_string(::getpid()), "-x", "ssh"}).output);
  for (pid_t pid; lines >> pid;) pids.push_back(pid);
  return pids;
}

}  // namespace

TEST_SUITE("launcher") {
  TEST_CASE("runner.ssh.command: commands, their output and status, several on one connection") {
    SystemWorld world;
    const auto transport = world.transport(world.ssh());
    auto connection = finish(world.io, transport->connect("target"));
    REQUIRE_MESSAGE(connection, (connection ? "" : connection.error().message));
    CHECK((*connection)->peer_address() == "127.0.0.1");
    CHECK(children().size() == 1);
    const auto first = world.run_command(**connection, "echo one; echo two >&2; exit 7");
    REQUIRE(first);
    CHECK(first->output == "one\n");
    CHECK(first->status.code == 7);
    // Data is intact in both directions.
    const auto channel = world.start(**connection, "cat");
    const std::string sent(1 << 20, 's');
    boost::asio::co_spawn(
        world.io,
        [](Channel& c, const std::string& bytes) -> boost::asio::awaitable<void> {
          (void)co_await c.write(bytes);
        }(*channel, sent),
        [](std::exception_ptr) {});
    std::string got;
    std::array<char, 65536> buffer;
    while (got.size() < sent.size()) {
      const auto count = finish(world.io, channel->read_some(buffer));
      REQUIRE(count);
      REQUIRE(*count > 0);
      got.append(buffer.data(), *count);
    }
    CHECK(got == sent);
    const auto pids = children();
    REQUIRE(pids.size() == 1);
    (*connection)->close();
    CHECK(world.until([] { return children().empty(); }));
    CHECK(gone(pids.front()));
  }

  TEST_CASE("runner.ssh.command: a thrown-away transport leaves no process") {
    SystemWorld world;
    auto io = std::make_unique<boost::asio::io_context>();
    auto transport = make_ssh_transport(io->get_executor(), world.ssh(), world.environment);
    boost::asio::co_spawn(*io, transport->connect("target"),
                          [](std::exception_ptr, Result<std::unique_ptr<Connection>>) {});
    for (int i = 0; i < 3; ++i) io->run_one_for(100ms);
    CHECK(children().size() == 1);
    transport.reset();
    io.reset();
    for (const pid_t pid : children()) {  // killed, but perhaps not reaped yet
      int status = 0;
      CHECK(::waitpid(pid, &status, 0) == pid);
      CHECK(WIFSIGNALED(status));
    }
    CHECK(children().empty());
  }

  TEST_CASE("runner.ssh.command: failures have their stage") {
    SystemWorld world;
    config::SshConfig ssh = world.ssh();
    const auto stage_of = [&] {
      const auto connection = world.connect("target", ssh);
      REQUIRE_FALSE(connection);
      MESSAGE(connection.error().message);
      return connection.error().code;
    };
    SUBCASE("resolve") {
      world.use("no-such-host.invalid", 22);
      CHECK(stage_of() == ErrorCode::resolve);
    }
    SUBCASE("connect") {
      world.use("127.0.0.1", free_port());
      CHECK(stage_of() == ErrorCode::connect);
    }
    SUBCASE("host key unknown") {
      world.know("");
      CHECK(stage_of() == ErrorCode::host_key);
      ssh.accept_new = true;
      CHECK(world.connect("target", ssh));
      CHECK(world.known().contains("ssh-ed25519"));
    }
    SUBCASE("host key changed") {
      const auto other = make_key(world.folder / "other");
      world.know(fmt::format("[127.0.0.1]:{} {}", world.server.port(), other));
      ssh.accept_new = true;
      CHECK(stage_of() == ErrorCode::host_key);
    }
    SUBCASE("auth") {
      make_key(world.folder / "stranger");
      std::filesystem::remove(world.home() / "id_ed25519");
      std::filesystem::copy_file(world.folder / "stranger", world.home() / "id_ed25519");
      CHECK(stage_of() == ErrorCode::auth);
    }
    SUBCASE("no such program") {
      ssh.command = {"no-such-ssh"};
      CHECK(stage_of() == ErrorCode::config);
    }
    SUBCASE("an option that it does not know") {
      ssh.command = {"ssh", "-o", "NoSuchOption=1"};
      CHECK(stage_of() == ErrorCode::config);
    }
    SUBCASE("a program that says nothing") {
      ssh.command = {"sh", "-c", "sleep 100"};
      ssh.resolve_timeout = ssh.connect_timeout = ssh.handshake_timeout = ssh.auth_timeout = 100ms;
      CHECK(stage_of() == ErrorCode::handshake);
      world.spend(50ms);
    }
    CHECK(world.until([] { return children().empty(); }));
  }

  TEST_CASE("runner.ssh.command: dropped by MaxStartups, all get in") {
    SystemWorld world;
    SshdOptions options;
    options.config = {"MaxStartups 2:50:6"};
    const Sshd busy(world.folder / "busy", world.public_key, options);
    world.know(busy.known_hosts_line());
    world.use("127.0.0.1", busy.port());
    const auto transport = world.transport(world.ssh());
    int good = 0, done = 0;
    for (int i = 0; i < 10; ++i)
      boost::asio::co_spawn(world.io, transport->connect(fmt::format("target{}", i)),
                            [&](std::exception_ptr, Result<std::unique_ptr<Connection>> made) {
                              ++done;
                              if (made)
                                ++good;
                              else
                                MESSAGE(made.error().message);
                            });
    world.io.restart();
    const auto limit = std::chrono::steady_clock::now() + 40s;
    while (done < 10 && std::chrono::steady_clock::now() < limit) world.io.run_one_for(1s);
    CHECK(good == 10);
  }

  TEST_CASE("runner.ssh.command: what is set is passed on, and a name is never an option") {
    config::SshConfig ssh;
    ssh.command = {"/opt/ssh", "-v"};
    ssh.user = "ada";
    ssh.port = 2222;
    ssh.config_file = "/c";
    ssh.identity_file = "/k";
    const auto words = ssh::system_ssh_words(ssh, "-oProxyCommand=touch /tmp/owned");
    CHECK(words.front() == "/opt/ssh");
    CHECK(words[1] == "-v");
    CHECK(words[words.size() - 2] == "--");
    CHECK(words.back() == "-oProxyCommand=touch /tmp/owned");
    const auto pair = [&](const std::string& option, const std::string& value) {
      const auto at = std::ranges::find(words, option);
      return at != words.end() && *std::next(at) == value;
    };
    CHECK(pair("-l", "ada"));
    CHECK(pair("-p", "2222"));
    CHECK(pair("-F", "/c"));
    CHECK(pair("-i", "/k"));
    for (const char* kept_here : {"-a", "-x", "-k"})  // agent, X11, Kerberos credentials
      CHECK(std::ranges::find(words, kept_here) != words.end());
    CHECK(ssh::system_ssh_words(ssh, "[::1]").back() == "::1");
    CHECK(ssh::system_ssh_words(ssh, "[::1]:2222").back() == "[::1]:2222");
    CHECK(ssh::system_ssh_words(ssh, "[fe80::1%eth0]").back() == "fe80::1%eth0");
  }

  TEST_CASE("runner.ssh.command: the agent stays here, whatever the config and the command say") {
    SystemWorld world;
    const auto socket = world.folder / "agent";
    const auto agent = run({"ssh-agent", "-a", socket.string()});
    REQUIRE(agent.code == 0);
    const auto number = agent.output.find("SSH_AGENT_PID=") + 14;
    const std::string pid = agent.output.substr(number, agent.output.find(';', number) - number);
    ::setenv("SSH_AUTH_SOCK", socket.c_str(), 1);
    world.use("127.0.0.1", world.server.port(), "ForwardAgent yes\n ForwardX11 yes\n");
    config::SshConfig ssh = world.ssh();
    for (const auto& command : {std::vector<std::string>{"ssh", "-o", "BatchMode=yes"},
                                {"ssh", "-A", "-X", "-o", "BatchMode=yes"},
                                {"ssh", "-o", "ForwardAgent=yes", "-o", "BatchMode=yes"}}) {
      ssh.command = command;
      const auto connection = world.connect("target", ssh);
      REQUIRE_MESSAGE(connection, (connection ? "" : connection.error().message));
      const auto seen =
          world.run_command(**connection, "echo agent:$SSH_AUTH_SOCK display:$DISPLAY.");
      REQUIRE(seen);
      CHECK(seen->output == "agent: display:.\n");
    }
    ::unsetenv("SSH_AUTH_SOCK");
    ::kill(std::stoi(pid), SIGTERM);
  }

  TEST_CASE("runner.ssh.command: an identity file that is not there is an error") {
    SystemWorld world;
    config::SshConfig ssh = world.ssh();
    ssh.identity_file = "/no/such/key";
    const auto connection = world.connect("target", ssh);
    REQUIRE_FALSE(connection);
    CHECK(connection.error().code == ErrorCode::config);
  }

  TEST_CASE("what ssh says is read as a stage, the first cause before its consequences") {
    const ProcessStatus failed{ProcessStatus::Kind::exited, 255, false};
    const auto stage = [&](std::string_view said) {
      return ssh::read_ssh_failure(said, failed).error.code;
    };
    CHECK(stage("ssh: connect to host j port 22: Connection refused\n"
                "Connection closed by UNKNOWN port 65535\n") == ErrorCode::connect);
    CHECK(stage("channel 0: open failed: connect failed: Connection timed out\n"
                "stdio forwarding failed\nConnection closed by UNKNOWN port 65535\n") ==
          ErrorCode::connect);
    CHECK(stage("Load key \"/k\": Permission denied\na@h: Permission denied (publickey).\n") ==
          ErrorCode::auth);
    CHECK(stage("Connection timed out during banner exchange\n") == ErrorCode::handshake);
    const auto drop = ssh::read_ssh_failure(
        "kex_exchange_identification: read: Connection reset by peer\n"
        "Connection reset by 10.0.0.1 port 22\n",
        failed);
    CHECK(drop.dropped);
    CHECK(drop.error.code == ErrorCode::handshake);
    CHECK_FALSE(ssh::read_ssh_failure("a@h: Permission denied (publickey).", failed).dropped);
    CHECK(ssh::last_words("a\x1b[31m\r\nb\n") == "a[31m | b");
  }
}
