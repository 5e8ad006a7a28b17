// Secrets of a job: the ranks get them, and no file, text or command line of any process contains
// them.
#include "launcher/plan/secrets.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "common/config/load.h"
#include "tests/support/child.h"
#include "tests/support/patience.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using test::has;

namespace fs = std::filesystem;
using testing::Finished;

struct Files {
  test::ScopedTempDir dir;
  // Assembled here, so that no command line of a build tool and no core pattern contains it.
  const std::string secret = "plan" + std::to_string(::getpid()) + "ted-s3cr3t";

  std::string write(const std::string& name, const std::string& text, int mode = 0600) const {
    testing::write_text(dir.str(name), text, mode);
    return dir.str(name);
  }
};

TEST_CASE("secrets come from the file and from the environment, and an error repeats none") {
  const Files files;
  config::RunnerConfig runner;
  runner.secret_env = {{"A", "(secret)"}, {"B", "(secret)"}, {"C", "given"}};
  runner.env = {{"D_KEY", "(secret)"}, {"PLAIN", "x"}};
  runner.secrets_file = files.write("s", "# more\n\nA=of=the file \nE=also\nD_KEY=k\r\n");
  const Environment environment = {{"A", "not this"}, {"B", "from outside"}, {"Z", ""}};
  REQUIRE(fill_in_secrets(runner, environment));
  CHECK(runner.secret_env ==
        std::map<std::string, std::string>{
            {"A", "of=the file "}, {"B", "from outside"}, {"C", "given"}, {"E", "also"}});
  CHECK(runner.env == std::map<std::string, std::string>{{"D_KEY", "k"}, {"PLAIN", "x"}});

  struct Row {
    std::string text, part;
    int mode = 0600;
  };
  for (const Row& row : {Row{"A=hunter2\n", "is open to others (mode 0640); chmod 600 it", 0640},
                         Row{"A=hunter2\n", "is open to others (mode 0604)", 0604},
                         Row{"A=1\nhunter2\n", ":2: is not of the form NAME=value"},
                         Row{"1A=hunter2\n", ":1: is not of the form"},
                         Row{"export A=hunter2\n", ":1: is not of the form"},
                         Row{"A=hunter2\nA=hunter2\n", ":2: A is there twice"},
                         Row{std::string("A=hunter2\0\n", 11), ":1: has a NUL character"},
                         Row{"C=hunter2\n", "C has a value in the config too"}}) {
    CAPTURE(row.part);
    config::RunnerConfig again;
    again.secret_env = {{"C", "hunter3"}};
    again.secrets_file = files.write("bad", row.text, row.mode);
    const auto failed = fill_in_secrets(again, {});
    REQUIRE_FALSE(failed);
    CHECK_MESSAGE(has(failed.error().message, row.part), failed.error().message);
    CHECK_FALSE(has(failed.error().message, "hunter"));
    CHECK(failed.error().code == ErrorCode::config);
  }
  config::RunnerConfig missing;
  missing.secret_env = {{"NAMED", "(secret)"}};
  CHECK(fill_in_secrets(missing, environment).error().message ==
        "NAMED: the value of this secret is not in the config; put NAMED=VALUE into "
        "runner.secrets_file, or export it");
  missing.secrets_file = files.dir.str("none");
  CHECK(fill_in_secrets(missing, environment).error().code == ErrorCode::not_found);
}

/// Files below `folder` that contain `text`. Does not follow symlinks.
std::vector<std::string> holding(const fs::path& folder, const std::string& text) {
  std::vector<std::string> out;
  std::error_code error;
  for (auto it = fs::recursive_directory_iterator(folder, error); it != fs::end(it);
       it.increment(error))
    if (it->is_regular_file(error) && !it->is_symlink(error) &&
        has(test::read_text(it->path()), text))
      out.push_back(it->path());
  return out;
}

/// Processes whose command line contains `text`.
std::vector<std::string> on_command_lines(const std::string& text) {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error))
    if (has(test::read_text(entry.path() / "cmdline"), text)) out.push_back(entry.path());
  return out;
}

struct PlantedJob : Files {
  PlantedJob() {
    // The rank compares with a file outside all folders that are searched.
    write("expected", secret + "\n");
    write(
        "rank.sh",
        "for value in \"$IN_CONFIG\" \"$MY_TOKEN\" \"$IN_FILE\" \"$OUTSIDE\" \"$MY_API_KEY\"; do\n"
        "  [ \"$value\" = \"$(cat '" +
            dir.str("expected") +
            "')\" ] || exit 9\ndone\n"
            "echo all there; : > '" +
            dir.str("started") +
            "'\n"
            "i=0; while [ ! -e '" +
            dir.str("go") +
            "' ] && [ $i -lt 300 ]; do sleep 0.1; i=$((i+1)); done\n"
            "exit \"$1\"\n");
    write("file", "IN_FILE=" + secret + "\n");
    write("job.toml", "[runner]\nmpi = \"off\"\nprogram = [\"sh\", \"" + dir.str("rank.sh") +
                          "\", \"0\"]\n"
                          "env = { MY_TOKEN = \"" +
                          secret +
                          "\", OPEN = \"seen\" }\n"
                          "secret_env = { IN_CONFIG = \"" +
                          secret +
                          "\", OUTSIDE = \"(secret)\" }\n"
                          "secrets_file = \"" +
                          dir.str("file") +
                          "\"\nenv_passthrough = [\"MY_*\"]\n"
                          "[logger]\nlog_level = \"debug\"\nlog_dir = \"" +
                          dir.str("state") + "\"\n");
    for (const char* folder : {"home", "runtime", "state"})
      fs::create_directory(dir / folder), ::chmod(dir.str(folder).c_str(), 0700);
  }

  /// The command with the two secrets in its environment. A shell reads them from a file, so that
  /// no argv contains them.
  std::vector<std::string> command(const std::string& arguments, bool with_secrets = true) const {
    const std::string script =
        std::string("umask 0\nexport HOME='") + dir.str("home") + "' XDG_RUNTIME_DIR='" +
        dir.str("runtime") + "'\n" +
        (with_secrets ? "read -r OUTSIDE < '" + dir.str("expected") +
                            "'; MY_API_KEY=$OUTSIDE; export OUTSIDE MY_API_KEY\n"
                      : "") +
        "exec " SORTIE_BINARY " " + arguments + "\n";
    write("run.sh", script);
    return {"/bin/sh", dir.str("run.sh")};
  }
  Finished run(const std::string& arguments, bool with_secrets = true) const {
    return testing::run(command(arguments, with_secrets));
  }
  fs::path latest() const { return dir / "state/runs/latest"; }
};

TEST_CASE("a planted secret is in the ranks, and nowhere else while and after they run") {
  const PlantedJob job;
  {
    testing::Child child(job.command("-v run " + job.dir.str("job.toml")), job.dir.str("shown"));
    const auto deadline = std::chrono::steady_clock::now() + test::patient(std::chrono::minutes(2));
    const auto in_time = [&] { return std::chrono::steady_clock::now() < deadline; };
    while (in_time() && !fs::exists(job.dir / "started"))
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    REQUIRE_MESSAGE(fs::exists(job.dir / "started"), test::read_text(job.dir / "shown"));
    CHECK(on_command_lines(job.secret) == std::vector<std::string>{});
    for (const char* folder : {"home", "runtime", "state"})
      CHECK(holding(job.dir / folder, job.secret) == std::vector<std::string>{});
    test::write_text(job.dir / "go", "");
    while (in_time() && child.running()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  CHECK(test::read_text(job.latest() / "logs/rank-0.out") == "all there\n");
  CHECK(has(test::read_text(job.dir / "shown"), "all there"));
  CHECK_FALSE(has(test::read_text(job.dir / "shown"), job.secret));
  for (const char* folder : {"home", "runtime", "state"})
    CHECK(holding(job.dir / folder, job.secret) == std::vector<std::string>{});
  const std::string kept = test::read_text(job.latest() / "config.toml");
  CHECK(has(kept, "MY_TOKEN = \"(secret)\""));
  CHECK(has(kept, "IN_FILE = \"(secret)\""));
  CHECK(has(kept, "OPEN = \"seen\""));

  // Nothing is open to others, although the umask was 0.
  std::size_t looked_at = 0;
  for (const auto& entry : fs::recursive_directory_iterator(job.dir / "state")) {
    struct stat info {};
    REQUIRE(::lstat(entry.path().c_str(), &info) == 0);
    if (S_ISLNK(info.st_mode)) continue;
    CAPTURE(entry.path());
    CHECK((info.st_mode & 0777) == (S_ISDIR(info.st_mode) ? 0700 : 0600));
    ++looked_at;
  }
  CHECK(looked_at >= 7);

  // The run's config can be run again if the secrets are given.
  const std::string again = "run " + (job.latest() / "config.toml").string();
  fs::copy_file(job.latest() / "config.toml", job.dir / "kept.toml");
  const Finished resumed = job.run(again);
  CHECK_MESSAGE(resumed.code == 2, resumed.output);  // MY_TOKEN and IN_CONFIG were in the config
  CHECK(has(resumed.output, "the value of this secret is not in the config"));
  job.write("file", "IN_FILE=" + job.secret + "\nMY_TOKEN=" + job.secret +
                        "\nIN_CONFIG=" + job.secret + "\n");
  const Finished with_all = job.run("run " + job.dir.str("kept.toml"));
  CHECK_MESSAGE(with_all.code == 0, with_all.output);
  CHECK_FALSE(has(with_all.output, job.secret));
}

TEST_CASE("plan, config show and errors do not show a secret") {
  const PlantedJob job;
  const std::string file = job.dir.str("job.toml");
  for (const std::string& arguments :
       {"plan " + file, "plan --json " + file, "config show " + file,
        "config show --origin " + file, "-v plan " + file,
        "run " + file + " -- /nonexistent/program", "run " + file + " --set runner.mpi=wrong",
        "run " + file + " --set runner.secret_env.RANK='(secret)'",
        "plan " + file + " --set runner.env.IN_CONFIG=x"}) {
    CAPTURE(arguments);
    const Finished result = job.run(arguments);
    CHECK_MESSAGE(!has(result.output, job.secret), result.output);
    if (arguments.starts_with("plan " + file + " ") || !arguments.contains("--set"))
      CHECK(result.output != "");
  }
  const Finished plan = job.run("plan " + file);
  CHECK(plan.code == 0);
  for (const char* name : {"IN_CONFIG", "MY_TOKEN", "IN_FILE", "OUTSIDE", "MY_API_KEY"})
    CHECK_MESSAGE(has(plan.output, std::string(name) + "=(secret)"), plan.output);
  CHECK(has(plan.output, "OPEN=seen"));
  const Finished without = job.run("plan " + file, false);
  CHECK(without.code == 2);
  CHECK(has(without.output, "OUTSIDE: the value of this secret is not in the config"));
  for (const char* folder : {"home", "runtime", "state"})
    CHECK(holding(job.dir / folder, job.secret) == std::vector<std::string>{});
}

}  // namespace
}  // namespace sortie::launcher
