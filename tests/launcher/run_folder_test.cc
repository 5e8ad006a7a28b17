// What a run leaves behind: the files, who may read them, and that each line of them is JSON.
#include "launcher/run/run_folder.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/temp_dir.h"

namespace sortie::launcher {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

int mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE_MESSAGE(::stat(path.c_str(), &status) == 0, path.string());
  return static_cast<int>(status.st_mode & 0777);
}

std::vector<json> lines_of(const fs::path& path) {
  std::vector<json> out;
  std::istringstream text(test::read_text(path));
  for (std::string line; std::getline(text, line);) out.push_back(json::parse(line));
  return out;
}

std::size_t open_files() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value ? ::setenv(name, value, 1) : ::unsetenv(name);
  }
  ~ScopedVariable() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST_CASE("all files of a run are there and for its owner only") {
  const test::ScopedTempDir state;
  auto folder = RunFolder::create(state.path(), true);
  REQUIRE(folder);
  REQUIRE(folder->write("config.toml", "[runner]\n"));
  folder->event("started", {{"ranks", 2}});
  folder->metric({{"type", "step"}, {"step", 1}, {"loss", 2.5}});
  folder->log(1, wire::Stream::err, "oh\n");
  folder->log(1, wire::Stream::err, std::string("no\0\n", 4));
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
  CHECK(folder->log_path(1, wire::Stream::out) == path / "logs/rank-1.out");
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
  CHECK(std::distance(fs::directory_iterator(state / "runs"), {}) == 51);  // nothing half made
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
  folder->event("one", {{"host", "h1"}});  // a list of one pair is an object too
  folder->event("two", {{"text", "a\nb \xff \"quoted\" \x01"}, {"code", 3}});
  const auto lines = lines_of(folder->path() / "events.jsonl");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0]["schema"] == "sortie/events/1");
  CHECK(lines[0]["event"] == "one");
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
  folder->metric({{"type", "step"}, {"step", "seven"}, {"loss", 1}});  // odd, not harmful
  folder->metric({{"type", "eval"}, {"step", 7}, {"loss", 1e300}});
  const auto lines = lines_of(folder->path() / "metrics.jsonl");
  REQUIRE(lines.size() == 4);
  CHECK(lines[0]["loss"].get<double>() == 0.1);  // every bit
  CHECK(lines[0].contains("time"));
  CHECK(lines[1]["text"] == "hello");
  CHECK_FALSE(folder->trouble());
}

TEST_CASE("without logger.tensorboard no events file is made") {
  const test::ScopedTempDir state;
  auto folder = RunFolder::create(state.path(), false);
  REQUIRE(folder);
  folder->metric({{"type", "step"}, {"step", 1}, {"loss", 2.5}});
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
    folder->event("one", {{"a", 1}});
    REQUIRE(folder->trouble());
    CHECK(folder->trouble()->message ==
          (folder->path() / "events.jsonl").string() + ": No space left on device");
  }
  SUBCASE("the file can not be opened: the reason is that of open") {
    fs::create_directory(folder->path() / "events.jsonl");
    folder->event("one", {{"a", 1}});
    REQUIRE(folder->trouble());
    CHECK(folder->trouble()->message ==
          (folder->path() / "events.jsonl").string() + ": Is a directory");
  }
  folder->metric({{"type", "note"}});
  CHECK(lines_of(folder->path() / "metrics.jsonl").size() == 1);
}

TEST_CASE("the logs of many ranks do not use up the open files of the process") {
  const test::ScopedTempDir state;
  auto folder = RunFolder::create(state.path(), false);
  REQUIRE(folder);
  const std::size_t before = open_files();
  std::size_t most = 0;
  for (int round = 0; round < 2; ++round)
    for (std::uint32_t rank = 0; rank < 600; ++rank) {
      folder->log(rank, wire::Stream::out, "line " + std::to_string(round) + "\n");
      if (rank % 50 == 0) most = std::max(most, open_files());
    }
  CHECK(most <= before + 300);
  CHECK_FALSE(folder->trouble());
  for (const std::uint32_t rank : {0u, 255u, 256u, 599u})
    CHECK(test::read_text(folder->log_path(rank, wire::Stream::out)) == "line 0\nline 1\n");
}

TEST_CASE("where the state folder is") {
  const ScopedVariable home("HOME", "/home/u");
  {
    const ScopedVariable state("XDG_STATE_HOME", "/state");
    CHECK(*state_folder("/logs") == "/logs");
    CHECK(*state_folder("") == "/state/sortie");
  }
  const ScopedVariable state("XDG_STATE_HOME", "relative");  // not allowed by its specification
  CHECK(*state_folder("") == "/home/u/.local/state/sortie");
  const ScopedVariable no_home("HOME", nullptr);
  REQUIRE_FALSE(state_folder(""));
  CHECK(state_folder("").error().message.find("logger.log_dir") != std::string::npos);
}

}  // namespace
}  // namespace sortie::launcher
