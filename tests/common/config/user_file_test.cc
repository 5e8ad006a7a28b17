#include "common/config/user_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "common/config/describe.h"
#include "common/config/fields.h"
#include "common/config/load.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temp_dir.h"

namespace sortie::config {
namespace {

const UserFile kMine{"/u/config.toml",
                     "[runner]\ngrace = \"3s\"\nheartbeat_timeout = \"20s\"\n"
                     "[runner.ssh]\nuser = \"ann\"\nport = 2222\n"};

TEST_CASE("a user's defaults lie between what is built in and the job's config") {
  const auto loaded = load_job_text("[runner]\ngrace = \"4s\"\n[runner.ssh]\nport = 3333\n",
                                    "job.toml", {"runner.ssh.port=4444"}, {}, &kMine);
  REQUIRE_MESSAGE(loaded, loaded.error().message);
  const RunnerConfig& runner = loaded->job.runner;
  CHECK(runner.ssh.port == 4444);                          // flag
  CHECK(runner.grace == Milliseconds(4000));               // job
  CHECK(runner.heartbeat_timeout == Milliseconds(20000));  // user
  CHECK(runner.ssh.user == "ann");
  CHECK(runner.heartbeat_interval == Milliseconds(2000));  // built in
  const std::string shown = show(*loaded, {.all = true, .origin = true});
  for (const char* line :
       {"port = 4444                                      # --set\n",
        "grace = \"4s\"                                     # job.toml:2:9\n",
        "heartbeat_timeout = \"20s\"                        # user's /u/config.toml:3:21\n",
        "user = \"ann\"                                     # user's /u/config.toml:5:8\n",
        "heartbeat_interval = \"2s\"                        # default\n"})
    CHECK_MESSAGE(shown.find(line) != shown.npos, shown);
  // The saved config of a run is complete without the user's file.
  const auto again = load_job_text(to_toml(loaded->job), "run.toml");
  REQUIRE(again);
  CHECK(to_toml(again->job) == to_toml(loaded->job));
}

TEST_CASE("what is about one job is refused in a user's file, with its place") {
  const UserFile file{"/u/config.toml",
                      "[model]\nhidden_size = 64\n[runner]\nhosts = [\"a\"]\ngrase = \"3s\"\n"
                      "grace = 5\n[runner.env]\nA = \"b\"\n"};
  const auto loaded = load_job_text("[trainer]\nseed = true\n", "job.toml", {}, {}, &file);
  REQUIRE_FALSE(loaded);
  const std::string& text = loaded.error().message;
  for (const char* line :
       {"/u/config.toml:2:1: model.hidden_size: is about one job, and this file holds for all of "
        "yours; write it into the job's config, or give it with --set\n",
        "/u/config.toml:4:1: runner.hosts: is about one job", "/u/config.toml:5:1: ",
        "did you mean runner.grace?", "/u/config.toml:6:9: runner.grace: 5 has no unit",
        "runner.env: is about one job", "\njob.toml:2:8: trainer.seed: "})
    CHECK_MESSAGE(text.find(line) != text.npos, text);
  CHECK(text.starts_with("/u/config.toml:2:1"));
}

TEST_CASE("every key of [runner.ssh] may be a user's, and none that shapes a job") {
  for (const Field& field : fields()) {
    CAPTURE(field.key);
    const std::string_view section = section_of(field);
    if (section == "runner.ssh") CHECK((field.flags & kUser) != 0);
    for (const std::string_view job : {"model", "data", "topology", "optimizer", "trainer", "lora",
                                       "learning_rate_scheduler", "profiler", "runner.container"})
      if (section == job || section.starts_with(std::string(job) + "."))
        CHECK((field.flags & kUser) == 0);
    if (field.flags & (kSecrets | kMayHoldSecrets)) CHECK((field.flags & kUser) == 0);
  }
}

TEST_CASE("of two ways to the hosts the job's takes the place of the user's") {
  const UserFile file{"u.toml", "[runner]\ntransport = [\"docker\", \"exec\", \"{host}\"]\n"};
  const auto loaded =
      load_job_text("[runner.ssh]\ncommand = [\"ssh\"]\n", "job.toml", {}, {}, &file);
  REQUIRE_MESSAGE(loaded, loaded.error().message);
  CHECK(loaded->job.runner.transport.empty());
  CHECK(loaded->job.runner.ssh.command.size() == 1);
  CHECK(loaded->origins.at("runner.transport") == "default");
  const UserFile stays{"u.toml", "[runner.ssh]\npersist = \"10m\"\n"};
  for (const char* other : {"[runner.ssh]\ncommand = [\"ssh\"]\n",
                            "[runner]\ntransport = [\"docker\", \"exec\", \"{host}\"]\n"}) {
    const auto job = load_job_text(other, "job.toml", {}, {}, &stays);
    REQUIRE_MESSAGE(job, (job ? "" : job.error().message));
    CHECK(job->job.runner.ssh.persist.count() == 0);
  }
  CHECK(load_job_text("", "job.toml", {}, {}, &stays)->job.runner.ssh.persist.count() == 600'000);
  // Within one file the two keys contradict each other.
  const UserFile both{"u.toml", file.text + "[runner.ssh]\ncommand = [\"ssh\"]\n"};
  CHECK_FALSE(load_job_text("", "job.toml", {}, {}, &both));
}

TEST_CASE("a user's file is found, is the user's own, and is written by nobody else") {
  const test::ScopedTempDir dir;
  std::filesystem::create_directories(dir / "xdg/sortie");
  const std::string path = dir.str("xdg/sortie/config.toml");
  const test::ScopedVariable named(kUserFileVariable, std::nullopt);
  const test::ScopedVariable home("HOME", dir.str("home"));
  {
    const test::ScopedVariable xdg("XDG_CONFIG_HOME", dir.str("xdg"));
    const auto none = read_user_file();
    REQUIRE(none);
    CHECK_FALSE(none->has_value());
    test::write_text(path, "[runner]\n");
    ::chmod(path.c_str(), 0644);
    const auto there = read_user_file();
    REQUIRE_MESSAGE(there, there.error().message);
    REQUIRE(there->has_value());
    CHECK((*there)->name == path);
    CHECK((*there)->text == "[runner]\n");
    for (const mode_t mode : {0664, 0646}) {
      ::chmod(path.c_str(), mode);
      const auto open = read_user_file();
      REQUIRE_FALSE(open);
      CHECK_MESSAGE(open.error().message.ends_with("chmod go-w it"), open.error().message);
    }
    const test::ScopedVariable off(kUserFileVariable, "none");
    const auto left_out = read_user_file();
    REQUIRE(left_out);
    CHECK_FALSE(left_out->has_value());
  }
  const test::ScopedVariable no_xdg("XDG_CONFIG_HOME", std::nullopt);
  std::filesystem::create_directories(dir / "home/.config/sortie");
  test::write_text(dir.str("home/.config/sortie/config.toml"), "# mine\n");
  const auto at_home = read_user_file();
  REQUIRE_MESSAGE(at_home, at_home.error().message);
  CHECK((*at_home)->text == "# mine\n");
  if (::geteuid() == 0) {
    REQUIRE(::chown(dir.str("home/.config/sortie/config.toml").c_str(), 12345, 12345) == 0);
    const auto foreign = read_user_file();
    REQUIRE_FALSE(foreign);
    CHECK(foreign.error().message.find("belongs to uid 12345") != std::string::npos);
  }
  const test::ScopedVariable gone(kUserFileVariable, dir.str("nowhere.toml"));
  CHECK_FALSE(read_user_file());  // SORTIE_USER_CONFIG names a missing file
}

}  // namespace
}  // namespace sortie::config
