// Commands that `sortie` prints to be copied. They are read from its output, as a user reads it,
// and called.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "common/base/shell_text.h"
#include "tests/launcher/command_line.h"

namespace sortie::launcher {
namespace {

using test::has;
using test::lines_of;
using test::shell;
using testing::Finished;

/// A line for the shell in a folder, with `sortie` on its PATH.
Finished line_in(const std::filesystem::path& folder, const std::string& line) {
  const std::filesystem::path binary = SORTIE_BINARY;
  return shell(fmt::format("cd {} && PATH={}:$PATH && export PATH && {}",
                           shell_word(folder.string()), shell_word(binary.parent_path().string()),
                           line));
}

/// Returns the commands below "next:" that the line shows on a terminal.
std::vector<std::string> next_after(const std::filesystem::path& folder, const std::string& line) {
  const Finished shown = line_in(folder, "script -qec " + shell_word(line) + " /dev/null");
  REQUIRE_MESSAGE(shown.code == 0, shown.output);
  std::vector<std::string> lines = lines_of(shown.output);
  for (std::string& each : lines) std::erase(each, '\r');
  std::vector<std::string> next(std::ranges::find(lines, "next:"), lines.end());
  REQUIRE_MESSAGE(!next.empty(), shown.output);
  next.erase(next.begin());
  for (std::string& each : next) {
    REQUIRE(each.starts_with("  sortie "));
    each.erase(0, 2);
  }
  return next;
}

void write_job(const test::ScopedTempDir& dir) {
  test::write_text(dir / "my job.toml",
                   "[runner]\nmpi = \"off\"\ngrace = \"1s\"\n"
                   "program = [\"sh\", \"-c\", \"echo rank $RANK of $WORLD_SIZE\"]\n"
                   "[logger]\nlog_dir = \"state\"\n");
  test::write_text(dir / "my groups.toml", "all = \"h[1-4]\"\n");
}

TEST_CASE("after plan: check and run of the planned job, whatever options it was given") {
  const test::ScopedTempDir dir;
  write_job(dir);
  const std::vector<std::string> jobs = {
      "'my job.toml'",
      "'my job.toml' --hosts 'h[1-2]'",
      "'my job.toml' --hosts 'h[1-2]' --slots 8",
      "--config 'my job.toml' --groups 'my groups.toml' --hosts @all --exclude 'h[3-4]'",
      "'my job.toml' --ssh-config 'an ssh config' --hosts h1",
      "'my job.toml' --set 'runner.env={A = \"b $c\"}' --set=runner.grace=3s",
      "'my job.toml' --slots 3 -- prog 'a b' -x",
      "--hosts h1 --shell -- \"ulimit -c 0; echo 'a b' | cat\""};
  for (const std::string& job : jobs) {
    CAPTURE(job);
    const std::string show = "sortie config show --all --origin ";
    const Finished planned = line_in(dir.path(), show + job);
    REQUIRE_MESSAGE(planned.code == 0, planned.output);
    const std::vector<std::string> next = next_after(dir.path(), "sortie plan " + job);
    REQUIRE(next.size() == 2);
    for (std::size_t i = 0; i < next.size(); ++i) {
      CAPTURE(next[i]);
      const std::string verb = i == 0 ? "sortie check " : "sortie run ";
      REQUIRE(next[i].starts_with(verb));
      CHECK(line_in(dir.path(), show + next[i].substr(verb.size())).output == planned.output);
    }
  }
}

TEST_CASE("after plan: the printed run starts the ranks that were planned") {
  const test::ScopedTempDir dir;
  write_job(dir);
  const auto next = next_after(dir.path(), "sortie plan 'my job.toml' --slots 3");
  REQUIRE(next.size() == 2);
  const Finished ran = line_in(dir.path(), next[1]);
  CHECK_MESSAGE(ran.code == 0, ran.output);
  for (const char* text : {"rank 0 of 3\n", "rank 1 of 3\n", "rank 2 of 3\n"})
    CHECK_MESSAGE(has(ran.output, text), ran.output);
}

TEST_CASE("after config init: its commands work once the file names data") {
  const test::ScopedTempDir dir;
  const auto next = next_after(dir.path(), "sortie config init > 'my job.toml'");
  REQUIRE(next.size() == 2);
  std::string text = test::read_text(dir / "my job.toml");
  const std::string empty = "\ndata_prefixes = []\n";
  const std::size_t at = text.find(empty);
  REQUIRE_MESSAGE(at != text.npos, text);
  test::write_text(dir / "my job.toml",
                   text.replace(at, empty.size(), "\ndata_prefixes = [\"/d/tokens\"]\n"));
  for (std::string line : next) {
    const std::size_t file = line.find(" FILE");
    REQUIRE_MESSAGE(file != line.npos, line);
    const Finished done = line_in(dir.path(), line.replace(file, 5, " 'my job.toml'"));
    CHECK_MESSAGE(done.code == 0, line << ": " << done.output);
    const std::string shown = line.starts_with("sortie plan ") ? "1 rank on 1 host" : "/d/tokens";
    CHECK_MESSAGE(has(done.output, shown), line << ": " << done.output);
  }
}

TEST_CASE("plan of sites: the printed check is about the same hosts") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "geo job.toml",
                   "[runner]\nhosts = [\"o[1-2] site=oslo\", \"r[1-2] site=rome\"]\n"
                   "[topology]\nglobal_batch_size = 8\n"
                   "[model]\nvocab_size = 64\nhidden_size = 16\nnum_layers = 1\n"
                   "num_attention_heads = 2\nsequence_length = 16\nprecision = \"f32\"\n"
                   "[trainer]\nthreads = 1\n[data]\ndata_prefixes = [\"/d/tokens\"]\n");
  const std::string job = "'geo job.toml' --exclude o2,r2 --slots 2";
  const Finished plan =
      line_in(dir.path(), "XDG_STATE_HOME=$PWD/state sortie plan --quiet " + job + " 2>&1");
  REQUIRE_MESSAGE(plan.code == 0, plan.output);
  CHECK_MESSAGE(has(plan.output, ": not measured; run `sortie check " + job + "`, or give "),
                plan.output);
}

}  // namespace
}  // namespace sortie::launcher
