// Which run folders may be adopted: those that only their owner could write.
#include "launcher/control/own_folder.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "tests/support/temp_dir.h"

namespace sortie::launcher {
namespace {

namespace fs = std::filesystem;

/// Runs `what` as another user; false if it failed.
bool as_nobody(const std::function<bool()>& what) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::setgid(65534) == 0 && ::setuid(65534) == 0 && what() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0;
}

/// The folder of a run over the sites a and b. Every entry can be written by its owner alone.
fs::path private_run(const fs::path& parent) {
  const fs::path run = parent / "20260101-000000-aaaa";
  for (const fs::path& folder : {run, run / "sites/a", run / "sites/b"}) {
    for (const char* logs : {"logs", "attempts/2/logs"}) fs::create_directories(folder / logs);
    for (const char* file :
         {"plan.json", "attempts/2/plan.json", "events.jsonl", "metrics.jsonl", "wandb-run"})
      test::write_text(folder / file, "x");
  }
  test::write_text(run / "config.toml", "x");
  test::write_text(run / "outer.log", "x");
  test::write_text(run / "sites/names.txt", "a\nb\n");
  fs::permissions(run, fs::perms(0700));
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(run))
    fs::permissions(entry.path(), fs::perms(entry.is_directory() ? 0700 : 0600));
  return run;
}

TEST_CASE("adopt: a folder whose content somebody else could write is not trusted") {
  test::ScopedTempDir dir;
  const fs::path run = private_run(dir.path());
  CHECK(check_own_folder(run));
  for (const char* name : {"",
                           "config.toml",
                           "plan.json",
                           "events.jsonl",
                           "metrics.jsonl",
                           "outer.log",
                           "wandb-run",
                           "logs",
                           "attempts",
                           "attempts/2",
                           "attempts/2/plan.json",
                           "attempts/2/logs",
                           "sites",
                           "sites/names.txt",
                           "sites/b",
                           "sites/b/plan.json",
                           "sites/b/events.jsonl",
                           "sites/b/metrics.jsonl",
                           "sites/b/logs",
                           "sites/b/attempts",
                           "sites/b/attempts/2",
                           "sites/b/attempts/2/plan.json",
                           "sites/b/attempts/2/logs"}) {
    CAPTURE(name);
    const fs::perms before = fs::status(run / name).permissions();
    fs::permissions(run / name, before | fs::perms::group_write);
    const auto refused = check_own_folder(run);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == ErrorCode::auth);
    CHECK(refused.error().message.find("other users may write there (mode ") != std::string::npos);
    fs::permissions(run / name, before);
  }
  for (const char* name : {"config.toml", "outer.log", "metrics.jsonl", "sites", "sites/names.txt",
                           "sites/a", "sites/a/logs", "sites/a/events.jsonl"}) {
    CAPTURE(name);
    fs::rename(run / name, dir.path() / "elsewhere");
    fs::create_symlink(dir.path() / "elsewhere", run / name);
    const auto refused = check_own_folder(run);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().message.ends_with(
        "is a symbolic link; only the user who started a run can adopt it"));
    fs::remove(run / name);
    fs::rename(dir.path() / "elsewhere", run / name);
  }
  CHECK(check_own_folder(run));
  fs::remove(run / "config.toml");
  CHECK_FALSE(check_own_folder(run));
}

TEST_CASE("adopt: the file with the names of sites of an older run is checked, too") {
  test::ScopedTempDir dir;
  const fs::path run = private_run(dir.path());
  fs::rename(run / "sites/names.txt", run / "sites/names");
  CHECK(check_own_folder(run));
  fs::permissions(run / "sites/names", fs::perms(0620));
  CHECK_FALSE(check_own_folder(run));
}

TEST_CASE("adopt: a folder of another user is refused" * doctest::skip(::geteuid() != 0)) {
  test::ScopedTempDir dir;
  fs::permissions(dir.path(), fs::perms(0755));
  const fs::path run = dir.path() / "20260101-000000-aaaa";
  fs::create_directories(run);
  for (const char* name : {"config.toml", "plan.json"}) test::write_text(run / name, "x");
  for (const char* name : {"", "config.toml", "plan.json"})
    fs::permissions(run / name, fs::perms(0755));
  CHECK(as_nobody([&] {
    const auto refused = check_own_folder(run);
    return !refused && refused.error().message.find(
                           "belongs to uid 0, this process to uid 65534") != std::string::npos;
  }));
  fs::permissions(run, fs::perms(0700));
  fs::create_directories(run / "sites/a");
  for (const char* name : {"sites", "sites/a"}) {
    REQUIRE(::chown((run / name).c_str(), 65534, 65534) == 0);
    test::write_text(run / "sites/names.txt", "a\n");
    const auto refused = check_own_folder(run);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().message.starts_with((run / name).string() + ": belongs to uid 65534"));
    REQUIRE(::chown((run / name).c_str(), 0, 0) == 0);
  }
}

}  // namespace
}  // namespace sortie::launcher
