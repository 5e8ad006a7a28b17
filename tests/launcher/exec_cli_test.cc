// The built `sortie exec` with the real runner, on this machine.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/launcher/command_line.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace sortie::launcher {
namespace {

using test::has;
using test::sortie;
using testing::Finished;

/// Runs `sortie exec --hosts localhost` with `options`, in a shell.
Finished here(const std::string& before, const std::string& options,
              const std::string& after = "") {
  return testing::run(
      {"/bin/sh", "-c", before + " '" SORTIE_BINARY "' exec --hosts localhost " + options + after});
}

TEST_CASE("exec: what is wrong on the command line is one line, exit code 2") {
  struct Row {
    std::vector<std::string> arguments;
    std::string message;
  };
  for (const Row& row :
       {Row{{"exec", "--", "true"}, "no hosts: give --hosts or --config"},
        Row{{"exec", "--hosts", "a"}, "no command was given"},
        Row{{"exec", "--hosts", "a", "--"}, "nothing follows --"},
        Row{{"exec", "--hosts", "a", "--shell", "--", "x", "y"}, "one argument, not 2"},
        Row{{"exec", "--hosts", "a", "--json", "--fold", "--", "x"}, "exclude each other"},
        Row{{"exec", "--hosts", "a", "--timeout", "5", "--", "x"}, "--timeout 5: "},
        Row{{"exec", "--hosts", "a", "--timeout", "0s", "--", "x"}, "no timeout"},
        Row{{"exec", "--hosts", "a", "--grace", "25h", "--", "x"}, "at most 24h"},
        Row{{"exec", "--hosts", "a,b", "--exclude", "c", "--", "x"},
            "--exclude: \"c\" is not among the hosts"},
        Row{{"exec", "--hosts", "a", "--exclude", "a", "--", "x"}, "no host is left"},
        Row{{"exec", "--hosts", "@nope", "--groups", "/dev/null", "--", "x"}, "no group @nope"},
        Row{{"exec", "--hosts", "a", "--fold", "--fanuot", "3", "--", "x"}, "`--fanout`?"}}) {
    CAPTURE(row.message);
    const Finished result = sortie(row.arguments);
    CHECK_MESSAGE(has(result.output, row.message), result.output);
    CHECK(result.code == 2);
    CHECK(std::ranges::count(result.output, '\n') == 1);
  }
}

TEST_CASE("exec: output, exit codes and the table") {
  const Finished good = here("", "-- printf '%s|' a 'b c' '' '$HOME'");
  CHECK(good.code == 0);
  CHECK(good.output == "[localhost] a|b c||$HOME|\n");
  const Finished bad = here("", "--shell --no-prefix -- 'echo $SORTIE_HOST; exit 9'");
  CHECK(bad.code == 9);
  CHECK(has(bad.output, "localhost\n"));
  CHECK(has(bad.output, "1 of 1 host failed\n  failed  localhost (1)  exit code 9\n"));
  CHECK(here("", "-- no-such-program").code == 127);
  CHECK(here("ulimit -Sn 256;", "-- sh -c 'ulimit -n'").output == "[localhost] 256\n");
  CHECK(here("", "-- sh -c 'kill -9 $$'").code == 137);
  const Finished late = here("",
                             "--timeout 300ms --grace 200ms -- sh -c 'trap : TERM; sleep 9 & "
                             "wait; wait'");
  CHECK(late.code == 124);
  CHECK(has(late.output, "  timeout  localhost (1)  still ran after 0.3 s: "));
}

TEST_CASE("exec: stdin only when it is asked for") {
  CHECK(here("echo data |", "--stdin -- cat").output == "[localhost] data\n");
  const Finished not_asked = here("printf 'one\\ntwo\\n' |", "-- cat");
  CHECK(not_asked.code == 0);
  CHECK(not_asked.output == "stdin was not sent to the hosts; --stdin does that\n");
  CHECK(here("", "--stdin -- wc -c", " < /dev/null").output == "[localhost] 0\n");
  CHECK(here("", "--stdin -- true", " <&-").code == 2);
}

TEST_CASE("exec: what a command leaves running is ended and told of") {
  const Finished result = here("", "--shell -- 'setsid sleep 4321 >/dev/null 2>&1 & echo ok'");
  CHECK(result.code == 0);
  CHECK(has(result.output, "[localhost] ok\n"));
  CHECK(
      has(result.output, "processes that the command had left running were ended: localhost (1)"));
}

TEST_CASE("exec: a full disk is an error, a reader that goes ends the command") {
  CHECK(here("", "--fold -- true", " > /dev/full").code == 9);
  CHECK(here("", "-- yes", " > /dev/full").code == 9);
  const Finished head = here("", "-- yes", " | head -n 1");
  CHECK(head.output.starts_with("[localhost] y\n"));
}

TEST_CASE("groups stand for their hosts in every verb that takes hosts") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "groups.toml", "gpu = \"gpu[01-03]\"\n");
  test::write_text(dir / "job.toml", "[runner]\nhosts = [\"@gpu slots=2\"]\nprogram = [\"x\"]\n");
  const std::string groups = dir.str("groups.toml"), job = dir.str("job.toml");
  CHECK(has(sortie({"plan", "--hosts", "@gpu,!gpu02,x", "--groups", groups, "--", "p"}).output,
            "3 ranks on 3 hosts"));
  CHECK(has(sortie({"plan", job, "--groups", groups}).output, "6 ranks on 3 hosts"));
  CHECK(has(sortie({"plan", job, "--set", "runner.groups_file=" + groups}).output, "6 ranks"));
  const Finished none = sortie({"plan", job, "--groups", dir.str("none")});
  CHECK(none.code != 0);
  CHECK(has(none.output, "groups file: "));
  test::write_text(dir / "bad.toml", "gpu = 7\n");
  CHECK(has(sortie({"plan", job, "--groups", dir.str("bad.toml")}).output, "bad.toml:1:7: "));
}

}  // namespace
}  // namespace sortie::launcher
