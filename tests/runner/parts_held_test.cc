// State that keeps a run intact while its launcher is away: unacknowledged events, and
// the lock on the run folder. Deaths that a keeper reports while a Stop comes.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>
#include <vector>

#include "runner/cleanup/folder_lock.h"
#include "runner/cleanup/run_folder.h"
#include "runner/process/held_process.h"
#include "runner/streams/kept_events.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace sortie::runner;
namespace fs = std::filesystem;

namespace {

std::string texts_from(const KeptEvents& events, std::uint64_t number) {
  std::string text;
  events.each_from(number, [&](const wire::RankEvent& event) { text += event.json; });
  return text;
}

/// A process that holds the lock of `folder` during the lifetime of this object.
class Holder {
 public:
  explicit Holder(const std::string& folder) {
    int ready[2];
    REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const auto lock = hold_folder(folder);
      const char byte = lock ? 'y' : 'n';
      if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    REQUIRE(byte == 'y');
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Holder() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace

TEST_CASE("events are kept until the launcher has them, and counted over the whole job") {
  KeptEvents events;
  for (const char* text : {"a", "b", "c"}) events.add({0, text});
  CHECK(events.first_unsent() == 0);
  events.mark_sent();
  CHECK(events.first_unsent() == 3);
  events.acknowledge(2);
  CHECK(texts_from(events, 0) == "c");
  CHECK(events.first_from(0) == 2);
  events.acknowledge(99);  // more than were sent: invalid, ignored
  CHECK(texts_from(events, 0) == "c");
  events.add({0, "d"});
  CHECK(texts_from(events, 2) == "cd");
  CHECK(texts_from(events, 3) == "d");
  CHECK(events.first_unsent() == 3);
  CHECK(events.first_from(77) == 4);
}

TEST_CASE("events that nobody takes are bounded: the oldest go first") {
  KeptEvents events;
  const std::string text(64u << 10, 'x');
  for (int i = 0; i < 200; ++i) events.add({0, text});
  const std::uint64_t first = events.first_from(0);
  CHECK(first == 200 - KeptEvents::kMaxBytes / text.size());
}

TEST_CASE("a run folder is nobody's only when that is certain") {
  const test::ScopedTempDir dir;
  const std::string folder = dir.str("run");
  REQUIRE(::mkdir(folder.c_str(), 0700) == 0);
  SUBCASE("nobody holds it") {
    CHECK_FALSE(may_be_held(folder));
  }
  SUBCASE("there is no such folder") {
    CHECK_FALSE(may_be_held(dir.str("other")));
  }
  SUBCASE("its holder is gone") {
    { const Holder holder(folder); }
    CHECK_FALSE(may_be_held(folder));
  }
  SUBCASE("somebody holds it") {
    const Holder holder(folder);
    CHECK(may_be_held(folder));
    SUBCASE("and a cleaner has removed the lock file") {
      fs::remove(folder + "/lock");
      CHECK(may_be_held(folder));
    }
    SUBCASE("and a cleaner has removed all of it") {
      fs::remove_all(folder);
      CHECK(may_be_held(folder));
    }
  }
  SUBCASE("a holder of an earlier build, which locks the file alone, and a cleaner") {
    const auto file = folder + "/lock";
    int ready[2];
    REQUIRE(::pipe2(ready, O_CLOEXEC) == 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      const char byte = ::open(file.c_str(), O_RDWR | O_CREAT, 0600) < 0 ? 'n' : 'y';
      (void)!::write(ready[1], &byte, 1);
      for (;;) ::pause();
    }
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    REQUIRE(byte == 'y');
    ::close(ready[0]);
    ::close(ready[1]);
    fs::remove(file);
    CHECK(may_be_held(folder));
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    CHECK_FALSE(may_be_held(folder));
  }
  SUBCASE("this process has no descriptor left to find it out") {
    rlimit before{};
    ::getrlimit(RLIMIT_NOFILE, &before);
    const rlimit none{0, before.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
    const bool held = may_be_held(folder);
    ::setrlimit(RLIMIT_NOFILE, &before);
    CHECK(held);
  }
}

TEST_CASE("systemd-tmpfiles leaves a held run folder alone: it can not lock it") {
  const test::ScopedTempDir dir;
  const std::string folder = dir.str("run");
  REQUIRE(::mkdir(folder.c_str(), 0700) == 0);
  const Holder holder(folder);
  // As systemd-tmpfiles's dir_cleanup() does for each folder it visits.
  const Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  CHECK(::flock(fd.get(), LOCK_EX | LOCK_NB) != 0);
}

TEST_CASE("a runner waits for another one that starts, also where that stands still for seconds") {
  const test::ScopedTempDir dir;
  const std::string runtime = dir.str("x");
  REQUIRE(::mkdir(runtime.c_str(), 0700) == 0);
  const test::ScopedVariable place("XDG_RUNTIME_DIR", runtime);
  REQUIRE(::mkdir(run_folder_base().c_str(), 0700) == 0);
  Fd other(::open(run_folder_base().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  REQUIRE(::flock(other.get(), LOCK_EX) == 0);
  std::jthread goes_on([&] {
    std::this_thread::sleep_for(std::chrono::seconds(4));
    other.reset();
  });
  auto folder = RunFolder::make("late-1-0");
  REQUIRE(folder);
  folder->remove();
}

TEST_CASE("a run folder and all in it are kept young") {
  const test::ScopedTempDir dir;
  const std::string base = dir.str("x");
  REQUIRE(::mkdir(base.c_str(), 0700) == 0);
  ::setenv("XDG_RUNTIME_DIR", base.c_str(), 1);
  auto folder = RunFolder::make("young-1-0");
  ::unsetenv("XDG_RUNTIME_DIR");
  REQUIRE(folder);
  REQUIRE(folder->write("config.toml", "x"));
  const std::string file = folder->path() + "/config.toml";
  const timespec old[2] = {{1000000, 0}, {1000000, 0}};
  for (const std::string& path : {file, folder->path()})
    REQUIRE(::utimensat(AT_FDCWD, path.c_str(), old, 0) == 0);
  folder->touch();
  for (const std::string& path : {file, folder->path()}) {
    struct stat info {};
    REQUIRE(::stat(path.c_str(), &info) == 0);
    CHECK(info.st_mtim.tv_sec > 1000000);
    CHECK(info.st_atim.tv_sec > 1000000);
  }
  folder->remove();
}

TEST_CASE("reports of a keeper that exited with an unread Stop arrive") {
  boost::asio::io_context io;
  HeldProcess process(io);
  Fd keeper;
  std::vector<KeeperReport> reports;
  REQUIRE(process.start_inside(
      [&](int control) -> Result<> {
        keeper.reset(::dup(control));
        return {};
      },
      [&](const KeeperReport& report) { reports.push_back(report); }));
  for (const auto kind : {KeeperReport::Kind::died, KeeperReport::Kind::gone}) {
    const KeeperReport report{.kind = kind, .wait_status = SIGSEGV};
    REQUIRE(::send(keeper.get(), &report, sizeof report, 0) == sizeof report);
  }
  process.stop(std::chrono::milliseconds(1000));
  keeper.reset();
  io.run_for(std::chrono::seconds(10));
  REQUIRE(reports.size() == 2);
  CHECK(reports[0].kind == KeeperReport::Kind::died);
  CHECK(reports[0].wait_status == SIGSEGV);
  CHECK(reports[1].kind == KeeperReport::Kind::gone);
}

TEST_CASE("a process that died before its keeper read the Stop was not stopped") {
  boost::asio::io_context io;
  HeldProcess process(io);
  HeldSpec spec;
  spec.title = "sortie-keep-0";
  spec.candidates = {"/bin/sleep"};
  spec.argv = {"sleep", "100"};
  spec.folders = {"/"};
  std::vector<KeeperReport> reports;
  const auto on_report = [&](const KeeperReport& report) {
    reports.push_back(report);
    if (report.kind != KeeperReport::Kind::started) return;
    ::kill(process.keeper(), SIGSTOP);
    siginfo_t state{};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(process.keeper()), &state, WSTOPPED) == 0);
    ::kill(report.pid, SIGKILL);
    // It stays a zombie, because its keeper is stopped.
    const std::string stat = "/proc/" + std::to_string(report.pid) + "/stat";
    while (test::read_text(stat).find(") Z ") == std::string::npos) std::this_thread::yield();
    process.stop(std::chrono::milliseconds(10000));
    ::kill(process.keeper(), SIGCONT);
  };
  REQUIRE(process.start(spec, on_report));
  io.run_for(std::chrono::seconds(30));
  ::waitpid(process.keeper(), nullptr, 0);
  REQUIRE(reports.size() == 3);
  CHECK(reports[1].kind == KeeperReport::Kind::died);
  CHECK(reports[1].wait_status == SIGKILL);
  CHECK(reports[1].stopped == 0);
  CHECK(reports[2].kind == KeeperReport::Kind::gone);
}
