// The files of a run: their names, permissions, and that each line of the JSON files is valid.
#include "launcher/run/run_folder.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <csignal>
#include <nlohmann/json.hpp>
#include <set>

#include "launcher/run/rank_logs.h"
#include "tests/support/descriptors.h"
#include "tests/support/patience.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temp_dir.h"

namespace sortie::launcher {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

int mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE_MESSAGE(::stat(path.c_str(), &status) == 0, path.string());
  return static_cast<int>(status.st_mode & 0777);
}

std::vector<Json> lines_of(const fs::path& path) {
  std::vector<Json> out;
  std::istringstream text(test::read_text(path));
  for (std::string line; std::getline(text, line);) out.push_back(Json::parse(line));
  return out;
}

TEST_CASE("all files of a run are there and for its owner only") {
  const test::ScopedTempDir state;
  auto folder = RunFolder::create(state.path(), true);
  REQUIRE(folder);
  REQUIRE(folder->write("config.toml", "[runner]\n"));
  folder->event(JournalEvent::started, {{"ranks", 2}});
  folder->metric({{"type", "step"}, {"step", 1}, {"loss", 2.5}});
  folder->log(1, wire::Stream::err, "oh\n");
  folder->log(1, wire::Stream::err, std::string("no\0\n", 4));
  REQUIRE(folder->drain());
  CHECK_FALSE(folder->trouble());

  const fs::path path = folder->path();
  CHECK(path == state / "runs" / folder->id());
  CHECK(fs::read_symlink(state / "runs/latest") == folder->id());
  CHECK(mode_of(path) == 0700);
  CHECK(mode_of(path / "logs") == 0700);
  for (const char* name : {"config.toml", "events.jsonl", "metrics.jsonl", "logs/rank-1.err"})
    CHECK_MESSAGE(mode_of(path / name) == 0600, name);
  CHECK(test::read_text(path / "config.toml") == "[runner]\n");
  CHECK(test::read_text(path / "logs/rank-1.err") == std::string("oh\nno\0\n", 7));
  CHECK(rank_log_path(folder->path(), {1, wire::Stream::out}) == path / "logs/rank-1.out");
  std::size_t events = 0;
  for (const auto& entry : fs::directory_iterator(path / "tensorboard")) {
    ++events;
    CHECK(mode_of(entry.path()) == 0600);
  }
  CHECK(events == 1);
}

TEST_CASE("ids are unique, sort by time and are what a runner takes") {
  const test::ScopedTempDir state;
  std::set<std::string> ids;
  for (int i = 0; i < 50; ++i) {
    auto folder = RunFolder::create(state.path(), false);
    REQUIRE(folder);
    const std::string& id = folder->id();
    CHECK(id.size() == 20);  // 20261121-095400-k3f9
    CHECK(id[8] == '-');
    CHECK(id[15] == '-');
    CHECK(id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == id.npos);
    ids.insert(id);
    CHECK(fs::read_symlink(state / "runs/latest") == id);
  }
  CHECK(ids.size() == 50);
  CHECK(std::distance(fs::directory_iterator(state / "runs"), {}) == 51);  // runs and `latest`
}

TEST_CASE("the folder of a run that could not start goes, and `latest` is the run before it") {
  const test::ScopedTempDir state;
  const auto entries = [&] {
    return std::distance(fs::directory_iterator(state / "runs"), fs::directory_iterator());
  };
  {
    auto only = RunFolder::create(state.path(), false);
    REQUIRE(only);
    only->discard();
    CHECK(entries() == 0);
  }
  const auto before = RunFolder::create(state.path(), false);
  REQUIRE(before);
  // The id has the time in seconds and random letters: this one is earlier than all others.
  fs::create_directories(state / "runs/20000101-000000-0000");
  auto folder = RunFolder::create(state.path(), false);
  REQUIRE(folder);
  CHECK(fs::read_symlink(state / "runs/latest") == folder->id());
  folder->discard();
  CHECK_FALSE(fs::exists(folder->path()));
  CHECK(fs::read_symlink(state / "runs/latest") == before->id());
  CHECK(entries() == 3);
}

TEST_CASE("a `latest` that is no link stays, and nothing else is left beside the run") {
  const test::ScopedTempDir state;
  test::write_text(state / "runs/latest/mine", "kept");
  REQUIRE(RunFolder::create(state.path(), false));
  CHECK(test::read_text(state / "runs/latest/mine") == "kept");
  CHECK(std::distance(fs::directory_iterator(state / "runs"), {}) == 2);
}

TEST_CASE("each event is one line of JSON, whatever is in it") {
  const test::ScopedTempDir state;
  auto folder = RunFolder::create(state.path(), false);
  REQUIRE(folder);
  const double before = unix_time();
  folder->event(JournalEvent::notice, {{"host", "h1"}});  // a list of one pair is an object too
  folder->event(JournalEvent::stop, {{"text", "a\nb \xff \"quoted\" \x01"}, {"code", 3}});
  REQUIRE(folder->drain());
  const auto lines = lines_of(folder->path() / "events.jsonl");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["schema"] == "sortie/events/1");
  CHECK(lines[0]["event"] == "notice");
  CHECK(lines[0]["host"] == "h1");
  CHECK(lines[0]["time"].get<double>() >= before);
  CHECK(lines[1]["text"] == "a\nb \xef\xbf\xbd \"quoted\" \x01");
  CHECK(lines[1]["code"] == 3);
}

TEST_CASE("metrics are written as they came, with the time") {
  const test::ScopedTempDir state;
  auto folder = RunFolder::create(state.path(), true);
  REQUIRE(folder);
  folder->metric({{"type", "step"}, {"step", 7}, {"loss", 0.1}});
  folder->metric({{"type", "note"}, {"text", "hello"}});
  folder->metric({{"type", "step"}, {"step", "seven"}, {"loss", 1}});  // odd, but harmless
  folder->metric({{"type", "eval"}, {"step", 7}, {"loss", 1e300}});
  REQUIRE(folder->drain());
  const auto lines = lines_of(folder->path() / "metrics.jsonl");
  REQUIRE(lines.size() == 4);
  CHECK(lines[0]["loss"].get<double>() == 0.1);  // exact
  CHECK(lines[0].contains("time"));
  CHECK(lines[1]["text"] == "hello");
  CHECK_FALSE(folder->trouble());
}

TEST_CASE("without logger.tensorboard no events file is made") {
  const test::ScopedTempDir state;
  auto folder = RunFolder::create(state.path(), false);
  REQUIRE(folder);
  folder->metric({{"type", "step"}, {"step", 1}, {"loss", 2.5}});
  REQUIRE(folder->drain());
  CHECK_FALSE(fs::exists(folder->path() / "tensorboard"));
}

TEST_CASE("a state folder that can not be used is one clear error") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "file", "");
  const auto folder = RunFolder::create(dir / "file", false);
  REQUIRE_FALSE(folder);
  CHECK(folder.error().code == ErrorCode::io);
  CHECK(folder.error().message ==
        dir.str("file/runs") +
            ": Not a directory; set logger.log_dir to a folder that is writable");
  // Root may write anywhere but in /proc.
  fs::create_directory_symlink("/proc/self", dir / "runs");
  const auto other = RunFolder::create(dir.path(), false);
  REQUIRE_FALSE(other);
  CHECK(other.error().message.starts_with(dir.str("runs/20")));
  CHECK(other.error().message.ends_with("; set logger.log_dir to a folder that is writable"));
}

TEST_CASE("a file that can not be written is remembered, and the run goes on") {
  const test::ScopedTempDir state;
  auto folder = RunFolder::create(state.path(), false);
  REQUIRE(folder);
  SUBCASE("the disk is full") {
    fs::create_symlink("/dev/full", folder->path() / "events.jsonl");
    folder->event(JournalEvent::notice, {{"a", 1}});
    REQUIRE(folder->drain());
    REQUIRE(folder->trouble());
    CHECK(folder->trouble()->message ==
          (folder->path() / "events.jsonl").string() + ": No space left on device");
  }
  SUBCASE("the file can not be opened: the reason is that of open") {
    fs::create_directory(folder->path() / "events.jsonl");
    folder->event(JournalEvent::notice, {{"a", 1}});
    REQUIRE(folder->drain());
    REQUIRE(folder->trouble());
    CHECK(folder->trouble()->message ==
          (folder->path() / "events.jsonl").string() + ": Is a directory");
  }
  folder->metric({{"type", "note"}});
  REQUIRE(folder->drain());
  CHECK(lines_of(folder->path() / "metrics.jsonl").size() == 1);
}

TEST_CASE("the logs of many ranks do not use up the open files of the process") {
  const test::ScopedTempDir state;
  auto folder = RunFolder::create(state.path(), false);
  REQUIRE(folder);
  const std::size_t before = test::open_files();
  std::size_t most = 0;
  for (int round = 0; round < 2; ++round)
    for (std::uint32_t rank = 0; rank < 600; ++rank) {
      folder->log(rank, wire::Stream::out, "line " + std::to_string(round) + "\n");
      if (rank % 50 == 0) {
        REQUIRE(folder->drain());
        most = std::max(most, test::open_files());
      }
    }
  REQUIRE(folder->drain());
  CHECK(most <= before + 300);
  CHECK_FALSE(folder->trouble());
  for (const std::uint32_t rank : {0u, 255u, 256u, 599u})
    CHECK(test::read_text(rank_log_path(folder->path(), {rank, wire::Stream::out})) ==
          "line 0\nline 1\n");
}

/// A file to which writing stalls: a named pipe without a reader until release().
struct StalledFile {
  explicit StalledFile(fs::path file) : path(std::move(file)) {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  }
  ~StalledFile() { release(); }
  void release() {
    if (!reader) reader.reset(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  }
  fs::path path;
  Fd reader;
};

TEST_CASE("a state folder that stalls holds up nobody; what waited is written when it goes on") {
  const test::ScopedTempDir state;
  auto folder = RunFolder::create(state.path(), false);
  REQUIRE(folder);
  StalledFile stalled(rank_log_path(folder->path(), {0, wire::Stream::out}));
  boost::asio::io_context io(1);
  std::uint64_t written = 0;
  RunFolder::Listener listener;
  listener.executor = io.get_executor();
  listener.on_written = [&](std::uint64_t owner, std::uint64_t bytes, std::uint64_t) {
    CHECK(owner == 7);
    written += bytes;
  };
  folder->listen(listener);
  const auto begin = std::chrono::steady_clock::now();
  folder->log(0, wire::Stream::out, "held up", 7);
  for (int i = 0; i < 1000; ++i) {
    folder->event(JournalEvent::swept, {{"i", i}});
    folder->log(1, wire::Stream::out, "line\n", 7);
  }
  folder->metric({{"type", "step"}, {"step", 1}});
  CHECK_FALSE(folder->superseded());
  CHECK(std::chrono::steady_clock::now() - begin < test::patient(std::chrono::seconds(5)));
  CHECK_FALSE(folder->drain(std::chrono::milliseconds(50)));
  io.poll();
  CHECK(written == 0);  // no credit for bytes that are not on disk
  CHECK(folder->queued_bytes() > 5000);
  CHECK(folder->stream_bytes(1, wire::Stream::out) == 5000);  // bytes received, not bytes written

  stalled.release();
  REQUIRE(folder->drain());
  io.restart();
  io.poll();
  CHECK(written == 5000 + 7);
  CHECK(lines_of(folder->path() / "events.jsonl").size() == 1000);
  CHECK(fs::file_size(rank_log_path(folder->path(), {1, wire::Stream::out})) == 5000);
  folder->listen({});
}

/// Limits the files of this process to `bytes`, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST_CASE("a full disk is told at once, and what is missing is marked where it is missing") {
  const test::ScopedTempDir state;
  auto folder = RunFolder::create(state.path(), false);
  REQUIRE(folder);
  boost::asio::io_context io(1);
  std::vector<std::string> told;
  RunFolder::Listener listener;
  listener.executor = io.get_executor();
  listener.on_trouble = [&](const Error& error) { told.push_back(error.message); };
  folder->listen(listener);
  folder->log(0, wire::Stream::out, "0123456789");
  REQUIRE(folder->drain());
  {
    const FullDisk full(15);
    folder->log(0, wire::Stream::out, "abcdefghij");
    folder->log(0, wire::Stream::out, "klm");
    REQUIRE(folder->drain());
    io.poll();
    REQUIRE(told.size() == 1);
    CHECK(told[0] ==
          rank_log_path(folder->path(), {0, wire::Stream::out}).string() + ": File too large");
  }
  folder->log(0, wire::Stream::out, "after");
  folder->finish(0);
  REQUIRE(folder->drain());
  CHECK(test::read_text(rank_log_path(folder->path(), {0, wire::Stream::out})) ==
        "0123456789abcde\n[sortie: 8 bytes are missing here: File too large]\nafter");
  CHECK(folder->lost_bytes() == 8);
  CHECK(folder->trouble());
  folder->listen({});
  // A supervisor that takes over gets the number of bytes that the ranks wrote, not the size of the
  // file.
  const LogEnd end = read_log_end(folder->path(), {0, wire::Stream::out});
  CHECK(end.stream_bytes == 28);
  CHECK(end.file_bytes == fs::file_size(rank_log_path(folder->path(), {0, wire::Stream::out})));
  RunFolder next = RunFolder::open(folder->path(), false);
  CHECK(next.stream_bytes(0, wire::Stream::out) == 28);
  next.log(0, wire::Stream::out, "!");
  REQUIRE(next.drain());
  CHECK(test::read_text(rank_log_path(folder->path(), {0, wire::Stream::out}))
            .ends_with("]\nafter!"));
}

TEST_CASE("a line of the journal is never cut in two, and one that was spoils no other") {
  const test::ScopedTempDir state;
  auto folder = RunFolder::create(state.path(), false);
  REQUIRE(folder);
  const fs::path journal = folder->path() / "events.jsonl";
  SUBCASE("the disk was full in the middle of it") {
    folder->event(JournalEvent::notice, {{"text", std::string(100, 'x')}});
    REQUIRE(folder->drain());
    {
      const FullDisk full(fs::file_size(journal) + 20);
      folder->event(JournalEvent::stop, {{"text", std::string(100, 'y')}});
      REQUIRE(folder->drain());
      CHECK(test::read_text(journal).back() != '\n');
    }
    folder->event(JournalEvent::end, {{"a", 3}});
    REQUIRE(folder->drain());
    const auto lines = lines_of(journal);
    REQUIRE(lines.size() == 3);
    CHECK(lines[1]["text"] == std::string(100, 'y'));
  }
  SUBCASE("its writer was killed: the next one ends it first") {
    test::write_text(journal,
                     "{\"schema\":\"sortie/events/1\",\"event\":\"one\"}\n{\"schema\":\"sor");
    folder->event(JournalEvent::stop, {{"a", 2}});
    REQUIRE(folder->drain());
    std::istringstream text(test::read_text(journal));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    REQUIRE(lines.size() == 3);
    CHECK(lines[1] == "{\"schema\":\"sor");
    CHECK(Json::parse(lines[2])["event"] == "stop");
  }
}

TEST_CASE("what throws while it is written is trouble of the folder, not the end of the run") {
  const test::ScopedTempDir state;
  auto folder = RunFolder::create(state.path(), false);
  REQUIRE(folder);
  config::JobConfig job;
  job.logger.wandb_mode = "offline";
  folder->track(job);
  folder->metric({{"type", "start"}, {"first_run", 1}});  // a number instead of a name
  folder->metric({{"type", "note"}});
  REQUIRE(folder->drain());
  CHECK(lines_of(folder->path() / "metrics.jsonl").size() == 2);
}

TEST_CASE("where the state folder is") {
  const test::ScopedVariable home("HOME", "/home/u");
  {
    const test::ScopedVariable state("XDG_STATE_HOME", "/state");
    CHECK(*state_folder("/logs") == "/logs");
    CHECK(*state_folder("") == "/state/sortie");
  }
  const test::ScopedVariable state("XDG_STATE_HOME",
                                   "relative");  // not allowed by its specification
  CHECK(*state_folder("") == "/home/u/.local/state/sortie");
  {
    const test::ScopedVariable relative("HOME", "home/u");
    CHECK(state_folder("").error().message.starts_with("HOME is no absolute path (home/u): "));
  }
  const test::ScopedVariable no_home("HOME", std::nullopt);
  REQUIRE_FALSE(state_folder(""));
  CHECK(state_folder("").error().message.find("logger.log_dir") != std::string::npos);
}

}  // namespace
}  // namespace sortie::launcher
