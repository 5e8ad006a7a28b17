// The built `sortie shell` and `sortie ssh`, and the user's defaults in every verb.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include "tests/launcher/command_line.h"

namespace sortie::launcher {
namespace {

TEST_CASE("ssh and shell say what they can not do") {
  struct Row {
    std::vector<std::string> arguments;
    const char* said;
  };
  for (const Row& row :
       {Row{{"ssh", "localhost"}, "is this machine"}, Row{{"ssh", "h[1-2]"}, "is 2 hosts"},
        Row{{"ssh", "h[1-2]", "uptime", "-p"}, "is 2 hosts"}, Row{{"ssh"}, "host"},
        Row{{"ssh", "--terminal", "--set", "runner.transport=[\"x\",\"{host}\"]", "h"},
            "runner.transport: x gives a command no terminal"},
        Row{{"shell"}, "no hosts: give --hosts or --config"}}) {
    const testing::Finished done = test::sortie(row.arguments);
    CHECK(done.code == 2);
    CHECK_MESSAGE(test::has(done.output, row.said), done.output);
  }
}

TEST_CASE(
    "a prompt that is told to end while its output waits for a reader asks for no more lines") {
  const test::ScopedTempDir dir;
  const auto done = test::shell("cd " + dir.str("") +
                                R"( && mkfifo in out || exit 1
timeout --foreground -s KILL 60 )" SORTIE_BINARY
                                R"( shell --hosts localhost < in > out 2> err &
exec 3> in 4< out
echo 'yes 0123456789 | head -n 30000' >&3
head -c 1 <&4 > first  # from here on it writes, and soon it waits
sleep 2
kill -TERM $!
cat <&4 > all
wait $!
echo "code $?")");
  CHECK_MESSAGE(test::has(done.output, "code 143"), done.output);
}

TEST_CASE("ssh hands a host's program the words that it needs") {
  const auto ssh = [](const std::string& options, const std::string& rest) {
    return test::shell(std::string(SORTIE_BINARY) + " ssh " + options + " " + rest).output;
  };
  CHECK(ssh("--set 'runner.transport=[\"echo\",\"to\",\"{host}\"]'", "h7 ls -l '$x'") ==
        "to h7 /bin/sh -c ls -l $x\n");
  const std::string own = ssh("--set 'runner.ssh.command=[\"echo\"]' -t", "h7 -- top -d 1");
  CHECK_MESSAGE(own.contains(" -t "), own);
  CHECK_MESSAGE(own.ends_with("-- h7 top -d 1\n"), own);
  CHECK(ssh("--set 'runner.ssh.command=[\"echo\"]'", "h7 run it").ends_with("-- h7 run it\n"));
}

TEST_CASE("every verb reads the user's defaults, which `config show` names") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "mine.toml", "[runner.ssh]\nuser = \"ann\"\n[runner]\ngrace = \"3s\"\n");
  ::chmod(dir.str("mine.toml").c_str(), 0600);
  const std::string with = "SORTIE_USER_CONFIG=" + dir.str("mine.toml") + " " + SORTIE_BINARY + " ";
  const std::string shown =
      test::shell(with + "config show --hosts a --set runner.grace=4s --origin").output;
  CHECK_MESSAGE(shown.contains("# user's " + dir.str("mine.toml") + ":2:8\n"), shown);
  CHECK_MESSAGE(shown.contains("# --set\n"), shown);
  CHECK(test::shell(with + "ssh --set 'runner.ssh.command=[\"echo\"]' h7 x")
            .output.contains("-l ann"));
  // The saved config of a run does not need the user's file.
  const std::string state = dir.str("state");
  CHECK(test::shell(with + "run --set runner.mpi=off --set logger.log_dir=" + state + " -- true")
            .code == 0);
  CHECK(test::shell("grep -h 'user = \"ann\"' " + state + "/runs/*/config.toml").code == 0);
  test::write_text(dir / "mine.toml", "[trainer]\nseed = 3\n");
  const auto refused = test::shell(with + "exec --hosts a -- true");
  CHECK(refused.code == 2);
  CHECK_MESSAGE(refused.output.contains("mine.toml:2:1: trainer.seed: is about one job"),
                refused.output);
}

}  // namespace
}  // namespace sortie::launcher
