// Installing and starting the runner over sshd and locally, with the shells of this machine, and
// with every failure on the host's side.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <boost/asio/co_spawn.hpp>
#include <ctime>
#include <thread>

#include "launcher/host/bootstrap.h"
#include "launcher/host/bootstrap_script.h"
#include "launcher/local/local_transport.h"
#include "tests/launcher/ssh/fixture.h"
#include "tests/support/run_within.h"
#include "tests/support/text.h"

using namespace sortie;
using namespace sortie::launcher;
using namespace sortie::launcher::testing;
namespace asio = boost::asio;

namespace {

using sortie::test::contains;

// A runner that reports how it was started and then echoes. Large enough to need several windows.
std::string fake_runner(int version = 1) {
  return fmt::format(
      "#!/bin/sh\n# {} {}\n[ -z \"$2\" ] || printf '\\nSORTIE HAVE\\n'\n"
      "echo \"runner {} $1\"; exec cat\n",
      version, std::string(3 << 20, '#'), version);
}

struct Bootstrapped : World {
  explicit Bootstrapped(SshdOptions options = {})
      : server(folder / "sshd", public_key, std::move(options)) {
    know(server.known_hosts_line());
    connection = connect_to(server);
    write_text(folder / "runner", fake_runner(), 0700);
  }
  RunnerBinary binary() { return std::move(*RunnerBinary::open(folder / "runner")); }
  std::filesystem::path cache() const { return server.remote_home() / ".cache/sortie"; }
  Result<std::unique_ptr<Channel>> start(const RunnerBinary& runner,
                                         std::chrono::milliseconds limit = 20s) {
    return finish(io, start_runner(*connection, runner, limit));
  }
  std::string first_line(Channel& channel) {
    const auto line = finish(io, [](Channel& c) -> asio::awaitable<Result<std::string>> {
      std::string text;
      char byte;
      while (!text.ends_with('\n')) {
        const std::span<char> one(&byte, 1);
        auto count = co_await c.read_some(one);
        if (!count) co_return std::unexpected(count.error());
        if (*count == 0) break;
        text += byte;
      }
      co_return text;
    }(channel));
    return line ? *line : line.error().message;
  }
  int files_in_cache() {
    int count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(cache())) ++count;
    return count;
  }
  Sshd server;
  std::unique_ptr<Connection> connection;
};

// A Connection that runs the script with `shell` in a given environment instead of /bin/sh: tests
// each shell of this machine without sshd.
class ShellConnection : public Connection {
 public:
  ShellConnection(asio::io_context& io, std::string prefix)
      : transport_(make_local_transport(io.get_executor())), prefix_(std::move(prefix)) {
    inner_ = finish(io, transport_->connect("localhost")).value();
  }
  asio::awaitable<Result<std::unique_ptr<Channel>>> exec(std::string command) override {
    const std::string sh = "exec /bin/sh -c ";
    if (command.starts_with(sh)) return inner_->exec(prefix_ + " -c " + command.substr(sh.size()));
    return inner_->exec(fmt::format("{} -c '{}'", prefix_, command));
  }
  std::string peer_address() const override { return ""; }
  void close() override { inner_->close(); }

 private:
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Connection> inner_;
  std::string prefix_;
};

}  // namespace

TEST_SUITE("launcher") {
  TEST_CASE("the runner is pushed where it is missing and reused where it is there") {
    Bootstrapped world;
    const auto runner = world.binary();
    auto first = world.start(runner);
    REQUIRE_MESSAGE(first, (first ? "" : first.error().message));
    CHECK(world.first_line(**first) == "runner 1 --stdio\n");
    const auto installed = world.cache() / ("runner-" + runner.sha256());
    REQUIRE(std::filesystem::exists(installed));
    CHECK(read_text(installed) == fake_runner());
    struct stat status {};
    ::stat(world.cache().c_str(), &status);
    CHECK((status.st_mode & 0777) == 0700);
    ::stat(installed.c_str(), &status);
    CHECK((status.st_mode & 0777) == 0700);
    const auto inode = status.st_ino;
    CHECK(world.files_in_cache() == 1);

    auto second = world.start(runner);
    REQUIRE(second);
    CHECK(world.first_line(**second) == "runner 1 --stdio\n");
    ::stat(installed.c_str(), &status);
    CHECK(status.st_ino == inode);
    // The channel is the runner's stdio in both directions.
    CHECK(finish(world.io, (*second)->write("ping\n")));
    CHECK(world.first_line(**second) == "ping\n");
  }

  TEST_CASE("an empty file or a file that is not executable under the right name is replaced") {
    Bootstrapped world;
    const auto runner = world.binary();
    REQUIRE(world.start(runner));
    const auto installed = world.cache() / ("runner-" + runner.sha256());
    for (const auto& [text, mode] :
         {std::pair{"", 0700}, std::pair{"#!/bin/sh\necho stale\n", 0600}}) {
      std::filesystem::remove(installed);
      write_text(installed, text, static_cast<mode_t>(mode));
      auto channel = world.start(runner);
      REQUIRE(channel);
      CHECK(world.first_line(**channel) == "runner 1 --stdio\n");
      CHECK((read_text(installed) == fake_runner()));
    }
  }

  TEST_CASE("a runner that can not start any more is replaced") {
    Bootstrapped world;
    const auto runner = world.binary();
    REQUIRE(world.start(runner));
    const auto installed = world.cache() / ("runner-" + runner.sha256());
    std::string content;
    SUBCASE("its end is missing") {
      content = fake_runner().substr(0, 2 << 20);
    }
    SUBCASE("zeros") {
      content = std::string(3 << 20, '\0');
    }
    SUBCASE("a signal ends it") {
      content = "#!/bin/sh\nkill -SEGV $$\n";
    }
    write_text(installed, content, 0700);
    auto channel = world.start(runner);
    REQUIRE_MESSAGE(channel, (channel ? "" : channel.error().message));
    CHECK(world.first_line(**channel) == "runner 1 --stdio\n");
    CHECK((read_text(installed) == fake_runner()));
    CHECK(world.files_in_cache() == 1);
  }

  TEST_CASE("a runner that is a link, or somebody else's, is not started but replaced") {
    Bootstrapped world;
    const auto runner = world.binary();
    REQUIRE(world.start(runner));
    const auto installed = world.cache() / ("runner-" + runner.sha256());
    const auto marker = world.folder / "was_run";
    const auto foreign = world.folder / "foreign";
    write_text(foreign, fmt::format("#!/bin/sh\ntouch {}\n", marker.string()), 0755);
    SUBCASE("a link to a file of this user") {
      std::filesystem::remove(installed);
      std::filesystem::create_symlink(foreign, installed);
    }
    SUBCASE("a file of another user") {
      std::filesystem::remove(installed);
      std::filesystem::copy_file(foreign, installed);
      if (::chown(installed.c_str(), 65534, 65534) != 0) {
        MESSAGE("not tried: only root can give a file away");
        return;
      }
    }
    auto channel = world.start(runner);
    REQUIRE_MESSAGE(channel, (channel ? "" : channel.error().message));
    CHECK(world.first_line(**channel) == "runner 1 --stdio\n");
    CHECK_FALSE(std::filesystem::exists(marker));
    CHECK_FALSE(std::filesystem::is_symlink(installed));
    CHECK((read_text(installed) == fake_runner()));
  }

  TEST_CASE("a folder with the runner's name: an empty one is replaced, another one passed over") {
    Bootstrapped world;
    const auto runner = world.binary();
    REQUIRE(world.start(runner));
    const auto installed = world.cache() / ("runner-" + runner.sha256());
    const auto in_tmp = fmt::format("/tmp/sortie-{}/{}", ::getuid(), installed.filename().string());
    std::filesystem::remove(installed);
    bool whole = true;
    SUBCASE("empty") {
      std::filesystem::create_directory(installed);
    }
    SUBCASE("a link to a folder") {
      std::filesystem::create_directory(world.folder / "other");
      std::filesystem::create_directory_symlink(world.folder / "other", installed);
    }
    SUBCASE("not empty") {
      std::filesystem::create_directory(installed);
      write_text(installed / "kept", "x");
      whole = false;
    }
    auto channel = world.start(runner);
    REQUIRE_MESSAGE(channel, (channel ? "" : channel.error().message));
    CHECK(world.first_line(**channel) == "runner 1 --stdio\n");
    CHECK(std::filesystem::is_regular_file(std::filesystem::symlink_status(installed)) == whole);
    CHECK(std::filesystem::exists(in_tmp) != whole);
    CHECK(std::filesystem::exists(installed / "kept") != whole);
    std::filesystem::remove(in_tmp);
  }

  TEST_CASE("builds that nobody has used for a week go, but for the newest three") {
    Bootstrapped world;
    std::vector<std::filesystem::path> files;
    const auto install = [&](int version) {
      write_text(world.folder / "runner", fake_runner(version), 0700);
      const auto runner = world.binary();
      auto channel = world.start(runner);
      REQUIRE(channel);
      CHECK(world.first_line(**channel) == fmt::format("runner {} --stdio\n", version));
      files.push_back(world.cache() / ("runner-" + runner.sha256()));
    };
    for (int version = 1; version <= 5; ++version) install(version);
    CHECK(world.files_in_cache() == 5);
    const auto used = [](const std::filesystem::path& file, int days_ago) {
      timespec times[] = {{.tv_sec = ::time(nullptr) - 86400 * days_ago, .tv_nsec = 0},
                          {.tv_sec = 0, .tv_nsec = UTIME_OMIT}};
      REQUIRE(::utimensat(AT_FDCWD, file.c_str(), times, 0) == 0);
    };
    // The first one is in use on another host. The three newest are the last, the first and the
    // fifth.
    for (std::size_t i = 1; i < 5; ++i) used(files[i], 20 - static_cast<int>(i));
    used(files[0], 2);
    install(6);
    const auto there = [&](std::size_t i) { return std::filesystem::exists(files[i]); };
    CHECK(world.files_in_cache() == 3);
    CHECK(there(0));
    CHECK(there(4));
    CHECK(there(5));
  }

  TEST_CASE("eight jobs that push the same runner at once") {
    Bootstrapped world;
    const auto runner = world.binary();
    int started = 0;
    for (int i = 0; i < 8; ++i)
      asio::co_spawn(world.io, start_runner(*world.connection, runner, 30s),
                     [&](std::exception_ptr, Result<std::unique_ptr<Channel>> channel) {
                       CHECK_MESSAGE(channel, (channel ? "" : channel.error().message));
                       if (++started == 8) world.io.stop();
                     });
    world.io.restart();
    test::run_within(world.io, 60s);
    CHECK(started == 8);
    CHECK(world.files_in_cache() == 1);
  }

  TEST_CASE("an sshd that allows one session at a time") {
    SshdOptions options;
    options.config = {"MaxSessions 1"};
    Bootstrapped world(options);
    const auto runner = world.binary();
    for (int i = 0; i < 3; ++i) {  // pushed the first time, then started directly
      auto channel = world.start(runner);
      REQUIRE_MESSAGE(channel, (channel ? "" : channel.error().message));
      CHECK(world.first_line(**channel) == "runner 1 --stdio\n");
      // A second session is refused. Neither the connection nor the first session ends.
      const auto second = finish(world.io, world.connection->exec("true"));
      REQUIRE(!second);
      CHECK(second.error().code == ErrorCode::channel);
      CHECK(finish(world.io, (*channel)->write("still here\n")));
      CHECK(world.first_line(**channel) == "still here\n");
      world.connection = world.connect_to(world.server);
    }
  }

  TEST_CASE("what the host's shell prints before the answer is passed over") {
    SshdOptions options;
    options.config = {
        "ForceCommand echo Welcome; printf 'no newline SORTIE NEED'; eval "
        "\"$SSH_ORIGINAL_COMMAND\""};
    Bootstrapped world(options);
    auto channel = world.start(world.binary());
    REQUIRE_MESSAGE(channel, (channel ? "" : channel.error().message));
    CHECK(world.first_line(**channel) == "runner 1 --stdio\n");
  }

  TEST_CASE("a host that never answers: a runner error in time, with what it printed") {
    SshdOptions options;
    options.config = {"ForceCommand echo This account is closed; echo details >&2; sleep 600"};
    Bootstrapped world(options);
    const auto channel = world.start(world.binary(), 5s);
    REQUIRE_FALSE(channel);
    CHECK(channel.error().code == ErrorCode::runner);
    CHECK(contains(channel.error().message, "within 5000 ms"));
    CHECK(contains(channel.error().message, "it printed: 'This account is closed'"));
    CHECK(contains(channel.error().message, "on stderr: 'details'"));
  }

  TEST_CASE("a host whose shell ends at once, or never stops printing") {
    SshdOptions options;
    SUBCASE("ends") {
      options.config = {"ForceCommand echo denied >&2; exit 9"};
      Bootstrapped world(options);
      const auto channel = world.start(world.binary());
      REQUIRE_FALSE(channel);
      CHECK(channel.error().code == ErrorCode::runner);
      CHECK(contains(channel.error().message, "ended (exit code 9)"));
      CHECK(contains(channel.error().message, "on stderr: 'denied'"));
    }
    SUBCASE("prints") {
      options.config = {"ForceCommand yes spam"};
      Bootstrapped world(options);
      const auto channel = world.start(world.binary());
      REQUIRE_FALSE(channel);
      CHECK(channel.error().code == ErrorCode::runner);
      CHECK(contains(channel.error().message, "came instead of an answer"));
    }
  }

  TEST_CASE("the script under every POSIX shell that is here; the runner has the user's umask") {
    World world;
    write_text(world.folder / "runner",
               "#!/bin/sh\numask > \"$HOME/umask\"\n[ -z \"$2\" ] || printf '\\nSORTIE HAVE\\n'\n"
               "exec cat\n",
               0700);
    const auto runner = std::move(*RunnerBinary::open(world.folder / "runner"));
    for (const std::string shell : {"dash", "bash", "bash --posix", "busybox sh"}) {
      CAPTURE(shell);
      if (run({"sh", "-c", "command -v " + shell}).code != 0) {
        // dash and bash are essential packages on Debian; busybox may be missing.
        REQUIRE(shell == "busybox sh");
        continue;
      }
      const auto home =
          world.folder / ("home-" + std::to_string(shell.size()) + shell.substr(0, 2));
      std::filesystem::create_directories(home);
      ShellConnection connection(
          world.io,
          fmt::format("umask 026; exec env -u XDG_CACHE_HOME HOME={} {}", home.string(), shell));
      for (int i = 0; i < 2; ++i) {
        auto channel = finish(world.io, start_runner(connection, runner, 20s));
        REQUIRE_MESSAGE(channel, (channel ? "" : channel.error().message));
        CHECK((*channel)->stderr_tail() == "");
        CHECK(contains(read_text(home / "umask"), "026"));
      }
      CHECK(std::filesystem::exists(home / (".cache/sortie/runner-" + runner.sha256())));
    }
  }

  TEST_CASE("bytes that do not have the promised hash are not installed") {
    World world;
    const auto home = world.folder / "home";
    std::filesystem::create_directories(home);
    const auto transport = make_local_transport(world.io.get_executor());
    const auto connection = finish(world.io, transport->connect("localhost")).value();
    const auto talk = [&](const std::string& request, const std::string& bytes) {
      const auto channel =
          world.start(*connection, fmt::format("export HOME={}; unset XDG_CACHE_HOME; {}",
                                               home.string(), kBootstrapCommand));
      CHECK(finish(world.io, channel->write(fmt::format("{}\n{}\n{}\n{}", kBootstrapScript, request,
                                                        kInstallScript, bytes))));
      const auto ran = finish(world.io, World::read_all(*channel));
      return ran ? ran->output : ran.error().message;
    };
    const std::string hash(64, 'a');
    CHECK(contains(talk(hash + " 5 any once", "wrong"), "SORTIE FAIL the runner arrived damaged"));
    CHECK(contains(talk(hash + " 5 sparc once", ""), "the runner is built for sparc"));
    CHECK(contains(talk("../x 5 any once", ""), "SORTIE FAIL the request is garbled"));
    CHECK(contains(talk(hash + " 5 any once twice", ""), "SORTIE FAIL the request is garbled"));
    CHECK(contains(talk("", ""), "SORTIE FAIL the request is garbled"));
    CHECK(std::filesystem::is_empty(home / ".cache/sortie"));
  }

  TEST_CASE("an upload that breaks off leaves nothing behind") {
    World world;
    const auto home = world.folder / "home";
    const auto cache = home / ".cache/sortie";
    std::filesystem::create_directories(home);
    const auto transport = make_local_transport(world.io.get_executor());
    const auto connection = finish(world.io, transport->connect("localhost")).value();
    {
      const auto channel =
          world.start(*connection, fmt::format("export HOME={}; unset XDG_CACHE_HOME; {}",
                                               home.string(), kBootstrapCommand));
      CHECK(finish(world.io, channel->write(fmt::format("{}\n{} 1000 any once\n{}\nonly this",
                                                        kBootstrapScript, std::string(64, 'a'),
                                                        kInstallScript))));
      REQUIRE(world.until([&] { return std::filesystem::exists(cache) && !is_empty(cache); }));
    }
    for (int i = 0; i < 1500 && !is_empty(cache); ++i) std::this_thread::sleep_for(20ms);
    CHECK(is_empty(cache));
  }

  TEST_CASE("a home folder that can not be used: a private folder in /tmp") {
    World world;
    write_text(world.folder / "runner",
               fmt::format("#!/bin/sh\n# {}\nprintf '\\nSORTIE HAVE\\n'; echo \"$0\"; exec cat\n",
                           world.folder.path().string()),
               0700);
    const auto runner = std::move(*RunnerBinary::open(world.folder / "runner"));
    write_text(world.folder / "file", "");
    ShellConnection connection(world.io,
                               fmt::format("exec env -u XDG_CACHE_HOME HOME={}/file /bin/sh",
                                           world.folder.path().string()));
    auto channel = finish(world.io, start_runner(connection, runner, 20s));
    REQUIRE_MESSAGE(channel, (channel ? "" : channel.error().message));
    const std::filesystem::path place = fmt::format("/tmp/sortie-{}", ::getuid());
    const auto installed = place / ("runner-" + runner.sha256());
    CHECK(std::filesystem::exists(installed));
    struct stat status {};
    ::stat(place.c_str(), &status);
    CHECK((status.st_mode & 0777) == 0700);
    std::filesystem::remove(installed);
  }

  TEST_CASE("a runner binary that is not there") {
    const auto runner = RunnerBinary::open("/nonexistent/runner");
    REQUIRE_FALSE(runner);
    CHECK(runner.error().code == ErrorCode::not_found);
  }

  TEST_CASE("an ELF binary names its machine, and its hash is sha256sum's") {
    const auto runner = RunnerBinary::open("/bin/true");
    REQUIRE(runner);
    CHECK(runner->machine() + "\n" == run({"uname", "-m"}).output);
    CHECK(runner->sha256() == run({"sha256sum", "/bin/true"}).output.substr(0, 64));
  }

  TEST_CASE("local transport: output, exit code, signal, stderr, own session") {
    World world;
    const auto transport = make_local_transport(world.io.get_executor());
    const auto connection = finish(world.io, transport->connect("localhost")).value();
    const auto ran = world.run_command(*connection, "echo out; echo err >&2; exit 3");
    REQUIRE(ran);
    CHECK(ran->output == "out\n");
    CHECK(ran->status == ProcessStatus{ProcessStatus::Kind::exited, 3, false});
    const auto killed = world.run_command(*connection, "kill -SEGV $$");
    REQUIRE(killed);
    CHECK(killed->status.kind == ProcessStatus::Kind::signaled);
    CHECK(killed->status.code == 11);
    const auto session = world.run_command(*connection, "ps -o sid= -p $$; echo $$");
    REQUIRE(session);
    int sid = 0, pid = 0;
    CHECK(std::sscanf(session->output.c_str(), "%d %d", &sid, &pid) == 2);
    CHECK(sid == pid);

    const auto channel = world.start(*connection, "cat; echo rest >&2");
    const std::string sent(2 << 20, 'l');
    asio::co_spawn(
        world.io,
        [](Channel& c, const std::string& bytes) -> asio::awaitable<void> {
          (void)co_await c.write(bytes);
        }(*channel, sent),
        [](std::exception_ptr) {});
    std::string got;
    char buffer[65536];
    while (got.size() < sent.size()) {
      const auto count = finish(world.io, channel->read_some(buffer));
      REQUIRE(count);
      got.append(buffer, *count);
    }
    CHECK(got == sent);
    channel->close();
    const auto after = finish(world.io, channel->read_some(buffer));
    REQUIRE_FALSE(after);
    CHECK(after.error().code == ErrorCode::lost);
  }

  TEST_CASE("local transport: a command that is gone is a write error, not a SIGPIPE") {
    World world;
    const auto transport = make_local_transport(world.io.get_executor());
    const auto connection = finish(world.io, transport->connect("localhost")).value();
    const auto channel = world.start(*connection, "exit 0");
    CHECK(finish(world.io, World::read_all(*channel)));
    const std::string much(1 << 20, 'x');
    const auto written = finish(world.io, channel->write(much));
    REQUIRE_FALSE(written);
    CHECK(written.error().code == ErrorCode::lost);
  }
}
