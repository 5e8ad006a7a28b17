// The built `sortie nodes`, and the effect of cordons on other verbs.
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "tests/launcher/command_line.h"

namespace sortie::launcher {
namespace {

using test::has;
using test::shell;
using testing::Finished;

/// Runs `sortie` with a separate state folder.
struct NodesUser {
  Finished operator()(const std::string& arguments) const {
    return shell("XDG_STATE_HOME=" + dir.str("state") + " " + SORTIE_BINARY + " " + arguments);
  }
  std::string file() const { return dir.str("state/sortie/nodes.json"); }
  test::ScopedTempDir dir;
};

TEST_CASE("nodes: cordon, list, uncordon") {
  const NodesUser user;
  CHECK(has(user("nodes ls").output, "no host is cordoned\nbreaker: closed"));
  Finished done = user("nodes cordon 'gpu[01-03],!gpu02' --reason 'fan is broken'");
  CHECK(done.code == 0);
  CHECK(has(done.output, "gpu[01,03]: cordoned"));
  done = user("nodes ls");
  CHECK(has(done.output, "fan is broken\n"));
  CHECK(test::count_of(done.output, "\ngpu0") == 2);
  const auto parsed = nlohmann::json::parse(user("nodes ls --json").output);
  CHECK(parsed["schema"] == "sortie/nodes/1");
  CHECK(parsed["cordoned"][1]["host"] == "gpu03");
  CHECK(parsed["cordoned"][1]["run"] == "");
  CHECK(parsed["breaker"]["open"] == false);
  CHECK(parsed["breaker"]["most"] == 2);
  CHECK(parsed["file"] == user.file());
  done = user("nodes uncordon 'gpu[01-02]'");
  CHECK(done.code == 0);
  CHECK(done.output == "gpu01: uncordoned\ngpu02: not cordoned\n");
  CHECK(has(user("nodes breaker").output, "breaker: closed"));
  CHECK(has(user("nodes breaker reset").output, "breaker: was closed"));
}

TEST_CASE("nodes: --exclude leaves hosts out, --set configures SSH") {
  const NodesUser user;
  test::write_text(user.dir / "groups.toml", "gpu = \"g[1-4]\"\nbad = \"g2\"\n");
  const std::string groups = " --groups " + user.dir.str("groups.toml");
  CHECK(user("nodes cordon @gpu --exclude @bad,g4 --reason fans" + groups).code == 0);
  CHECK(user("nodes uncordon @gpu --exclude g1" + groups).output ==
        "g3: uncordoned\ng[2,4]: not cordoned\n");
  CHECK(has(user("nodes ls --json").output, "\"host\": \"g1\""));
  for (const char* verb :
       {"nodes cordon h1 --exclude h1 --reason x", "nodes uncordon h1 --exclude h1",
        "nodes test h1 --exclude h1", "connections close h1 --exclude h1"}) {
    const Finished none = user(verb);
    CAPTURE(none.output);
    CHECK(none.code == 2);
    CHECK(has(none.output, "no host is left without \"h1\""));
  }
  const Finished no_hosts = user("connections close --exclude h1");
  CHECK(no_hosts.code == 2);
  CHECK_MESSAGE(has(no_hosts.output, "--exclude requires hosts"), no_hosts.output);
  test::write_text(user.dir / "ssh_config", "Host node2\n  HostName 127.0.0.1\n  Port 1\n");
  const Finished tested = user(
      "nodes test 'node[1-2]' --exclude node1 --set "
      "runner.ssh.config_file=" +
      user.dir.str("ssh_config"));
  CAPTURE(tested.output);
  CHECK(tested.code == 2);
  CHECK(has(tested.output, "node2"));
  CHECK(has(tested.output, "FAIL"));
  CHECK_FALSE(has(tested.output, "node1"));
}

TEST_CASE("every verb that takes hosts knows the groups of the user's defaults") {
  const NodesUser user;
  test::write_text(user.dir / "groups.toml", "rack = \"r[1-2]\"\n");
  test::write_text(user.dir / "config.toml",
                   "[runner]\ngroups_file = \"" + user.dir.str("groups.toml") + "\"\n");
  ::chmod(user.dir.str("config.toml").c_str(), 0600);
  const auto with_defaults = [&](const std::string& arguments) {
    return shell("SORTIE_USER_CONFIG=" + user.dir.str("config.toml") + " XDG_STATE_HOME=" +
                 user.dir.str("state") + " " + SORTIE_BINARY + " " + arguments);
  };
  CHECK(has(with_defaults("nodes cordon @rack --reason fans").output, "r[1-2]: cordoned"));
  CHECK(with_defaults("nodes uncordon @rack --exclude r1").output == "r2: uncordoned\n");
  const Finished closed = with_defaults("connections close @rack");
  CHECK_MESSAGE(closed.code == 0, closed.output);
  CHECK(has(with_defaults("plan --hosts @rack --exclude r1 -- ./x").output, "r2"));
  // --groups overrides them.
  test::write_text(user.dir / "other.toml", "rack = \"r7\"\n");
  CHECK(has(with_defaults("nodes cordon @rack --reason fans --groups " + user.dir.str("other.toml"))
                .output,
            "r7: cordoned"));
}

TEST_CASE("nodes: what is no reason, no host, no action") {
  const NodesUser user;
  CHECK(user("nodes cordon h1").code == 2);
  CHECK(user("nodes cordon h1 --reason ''").code == 2);
  CHECK(user("nodes cordon h1 --reason \"$(printf 'a\\nb')\"").code == 2);
  CHECK(user("nodes cordon 'h[' --reason x").code == 2);
  CHECK(user("nodes breaker open").code == 2);
  CHECK(user("nodes").code == 2);
  CHECK_FALSE(std::filesystem::exists(user.file()));
}

TEST_CASE("a cordoned host in a job: an error, a spare in its place, or looked at all the same") {
  const NodesUser user;
  REQUIRE(user("nodes cordon h2 --reason 'fan is broken'").code == 0);
  for (const char* verb : {"plan", "run", "check"}) {
    const Finished refused = user(std::string(verb) + " --hosts 'h[1-2]' -- ./x");
    CAPTURE(refused.output);
    CHECK(refused.code == 2);
    CHECK(has(refused.output, "h2 is cordoned by "));
    CHECK(has(refused.output, ": fan is broken\n"));
    CHECK(has(refused.output, "`sortie nodes uncordon 'h2'`"));
  }
  CHECK(user("plan --hosts 'h[1-2]' --exclude h2 -- ./x").code == 0);
  const Finished spare = user("plan --hosts 'h[1-2]' --set 'recovery.spares=[\"s[1-2]\"]' -- ./x");
  CAPTURE(spare.output);
  CHECK(spare.code == 0);
  CHECK(has(spare.output, "\n  s1       1 "));
  CHECK(has(spare.output, "warning   spare s1 takes the place of h2: h2 is cordoned by "));
  const Finished twice = user("plan --hosts 'h[1-2]' --set 'recovery.spares=[\"h1\"]' -- ./x");
  CHECK(twice.code == 2);
  CHECK(has(twice.output, "recovery.spares: h1 is a host of the job or a spare already"));
  // Cordoned hosts can be checked on their own: that shows whether they work again.
  test::write_text(user.dir / "ssh_config", "Host h2\n  HostName 127.0.0.1\n  Port 1\n");
  for (const char* verb : {"nodes test h2", "check --hosts h2"}) {
    const Finished looked = user(std::string(verb) + " --ssh-config " + user.dir.str("ssh_config"));
    CAPTURE(looked.output);
    CHECK(looked.code == 2);
    CHECK(has(looked.output, "FAIL"));
    CHECK_FALSE(has(looked.output, "cordoned"));
  }
}

TEST_CASE("a store that can not be read stops a run: nothing is taken to be sound") {
  const NodesUser user;
  test::write_text(user.file(), "{}");
  for (const char* verb : {"run --set runner.mpi=off -- true", "plan -- true", "nodes ls",
                           "nodes cordon h1 --reason x", "nodes breaker reset"}) {
    const Finished refused = user(verb);
    CAPTURE(refused.output);
    CHECK(refused.code == 9);
    CHECK(has(refused.output, user.file() + ": the list of cordoned hosts can not be read"));
  }
  CHECK(test::read_text(user.file()) == "{}");
  const Finished refused =
      shell(std::string("XDG_STATE_HOME=/dev/null ") + SORTIE_BINARY + " nodes ls");
  CHECK(refused.code == 9);
  CHECK(has(refused.output, "see that /dev/null/sortie is a folder of yours"));
  CHECK_FALSE(has(refused.output, "correct the file"));
}

}  // namespace
}  // namespace sortie::launcher
