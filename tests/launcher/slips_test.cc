// Common mistakes on the command line, answered with the form that works.
#include "common/cli/parse_error.h"
#include "launcher/host/fold_failures.h"
#include "tests/launcher/command_line.h"

namespace sortie::launcher {
namespace {

using test::after;
using test::all_verbs;
using test::has;
using test::holds;
using test::shell;
using test::sortie;
using testing::Finished;

TEST_CASE("a program in front of -- is answered with the whole command in its right form") {
  struct Row {
    std::vector<std::string> arguments;
    std::string form;
  };
  for (const Row& row : {
           Row{{"exec", "gpu[01-04]", "uptime"}, "sortie exec --hosts 'gpu[01-04]' -- uptime"},
           Row{{"exec", "h1,h2", "ls", "-l", "a b"}, "sortie exec --hosts h1,h2 -- ls -l 'a b'"},
           Row{{"exec", "--hosts", "@gpu", "uname", "-r"}, "sortie exec --hosts @gpu -- uname -r"},
           Row{{"exec", "--fold", "@gpu", "date"}, "sortie exec --fold --hosts @gpu -- date"},
           Row{{"exec", "-q", "--config", "job.toml", "date"},
               "sortie exec -q --config job.toml -- date"},
           Row{{"exec", "@gpu"}, "sortie exec --hosts @gpu -- COMMAND"},
           Row{{"run", "--hosts", "h1", "./my_mpi", "-n", "4"},
               "sortie run --hosts h1 -- ./my_mpi -n 4"},
           Row{{"run", "job.toml", "./my_mpi", "x"}, "sortie run job.toml -- ./my_mpi x"},
           Row{{"plan", "--slots", "2", "python3", "train.py"},
               "sortie plan --slots 2 -- python3 train.py"},
           // The program stands behind --, the hosts do not have their option.
           Row{{"exec", "h01", "--", "uptime", "-p"}, "sortie exec --hosts h01 -- uptime -p"},
           Row{{"shell", "h01"}, "sortie shell --hosts h01"},
           // A line for a shell needs --shell.
           Row{{"exec", "--hosts", "@gpu", "echo $HOME; x"},
               "sortie exec --hosts @gpu --shell -- 'echo $HOME; x'"},
           Row{{"exec", "h1", "ls | wc"}, "sortie exec --hosts h1 --shell -- 'ls | wc'"},
           Row{{"exec", "h1", "--", "ls | wc"}, "sortie exec --hosts h1 --shell -- 'ls | wc'"},
           // Options of pdsh, mpirun and torchrun.
           Row{{"exec", "-w", "h[01-02]", "uptime"}, "sortie exec --hosts 'h[01-02]' -- uptime"},
           Row{{"exec", "-w", "h01", "--", "uptime"}, "sortie exec --hosts h01 -- uptime"},
           Row{{"shell", "-w", "h01"}, "sortie shell --hosts h01"},
           Row{{"push", "-w", "h01", "a", "b"}, "sortie push --hosts h01 a b"},
           Row{{"run", "-n", "4", "./a", "-n", "1"}, "sortie run --slots 4 -- ./a -n 1"},
           Row{{"run", "-np", "4", "--", "./a"}, "sortie run --slots 4 -- ./a"},
           Row{{"run", "-np", "4", "-H", "h01,h02", "./a"},
               "sortie run --hosts h01,h02 --slots 2 -- ./a"},
           Row{{"run", "--hostfile", "f", "./a"}, "sortie run --set runner.hosts_file=f -- ./a"},
           Row{{"run", "--nproc-per-node", "4", "train.py"},
               "sortie run --slots 4 -- python3 train.py"},
           Row{{"run", "--nnodes=2", "--nproc_per_node=4", "train.py"},
               "sortie run --slots 4 --hosts HOSTS -- python3 train.py"},
       }) {
    CAPTURE(row.form);
    const Finished result = sortie(row.arguments);
    CHECK_MESSAGE(has(result.output, "did you mean `" + row.form + "`?"), result.output);
    CHECK(result.code == 2);
    CHECK(std::ranges::count(result.output, '\n') == 1);
  }
  // Other mistakes keep their own messages.
  CHECK(has(sortie({"exec", "--hsots", "a", "uptime"}).output, "did you mean `--hosts`?"));
  CHECK(has(sortie({"status", "a", "b"}).output, "see `sortie status --help`"));
  // Three ranks do not fit evenly on two hosts.
  CHECK(has(sortie({"run", "-n", "3", "-H", "h1,h2", "./a"}).output,
            "no option `-n`; did you mean `--slots`?"));
  // A letter is near to each other letter, and means nothing.
  CHECK(sortie({"run", "-x", "FOO", "./a"}).output ==
        "sortie: run: no option `-x`; see `sortie run --help`\n");
}

TEST_CASE("what does not parse is said in words, in the order in which it was given") {
  struct Row {
    std::vector<std::string> arguments;
    std::string text;
  };
  for (const Row& row : {
           Row{{"attach", "a", "b", "c"},
               "attach: `b c` are not expected; see `sortie attach --help`"},
           Row{{"exec", "--hosts", "h01", "--hosts", "h02", "--", "x"},
               "exec: --hosts: given twice; write one list, as in --hosts h01,h02"},
           Row{{"run", "--slots", "1", "--slots", "2", "--slots", "2", "--", "x"},
               "run: --slots: given 3 times; give it once"},
           Row{{"config", "init", "--preset"},
               "config init: --preset: a value is missing; see `sortie config init --help`"},
           Row{{"config", "diff", "a"},
               "config diff: configs: 2 are needed, 1 given; see `sortie config diff --help`"},
           Row{{"push", "--hosts", "h1", "a"}, "push: REMOTE is missing; see `sortie push --help`"},
           Row{{"pull"}, "pull: REMOTE... LOCALDIR are missing; see `sortie pull --help`"},
           Row{{"push", "--relay", "offf", "--hosts", "h1", "a", "b"},
               "push: --relay: offf is none of auto, off, on; did you mean `off`?"},
           Row{{"completion", "xyzzy"},
               "completion: shell: xyzzy is none of bash, zsh, fish; see `sortie completion "
               "--help`"},
       }) {
    CAPTURE(row.text);
    const Finished result = sortie(row.arguments);
    CHECK(result.output == "sortie: " + row.text + "\n");
    CHECK(result.code == 2);
  }
  // Hosts are missing, even if the first word looks like one.
  for (const char* verb : {"push", "pull"})
    CHECK(sortie({verb, "h01", "a", "b"}).output.starts_with("sortie: which hosts? `sortie "));
}

TEST_CASE("suggested commands begin with the name under which the program was found") {
  const std::filesystem::path folder = std::filesystem::path(SORTIE_BINARY).parent_path();
  const std::string output =
      shell("cd '" + folder.parent_path().string() + "' && bin/sortie exec h1 uptime").output;
  CHECK_MESSAGE(has(output, "did you mean `bin/sortie exec --hosts h1 -- uptime`?"), output);
}

TEST_CASE("a line for a shell as the name of a program is answered with --shell") {
  const Finished exec = sortie({"exec", "--hosts", "h1", "--", "echo $HOME; x"});
  CHECK(exec.code == 2);
  CHECK(has(exec.output,
            "'echo $HOME; x' is a line for a shell, not the name of a program; did you mean "
            "`sortie exec --hosts h1 --shell -- 'echo $HOME; x'`?\n"));
  for (const char* verb : {"run", "plan", "check"})
    CHECK(has(sortie({verb, "--", "a | b"}).output,
              std::string("`sortie ") + verb + " --shell -- 'a | b'`?"));
  CHECK(cli::looks_like_shell_line("uname -r"));
  CHECK_FALSE(cli::looks_like_shell_line("./a-b_c.d"));
  // --shell accepts such a line. Several words are an argument vector, whatever they contain.
  CHECK(sortie({"plan", "--shell", "--", "echo $HOME; x"}).code == 0);
  CHECK(has(sortie({"plan", "--shell", "--", "echo $HOME; x"}).output,
            "program   /bin/sh -c 'echo $HOME; x'\n"));
  CHECK(sortie({"plan", "--", "echo", "$HOME; x"}).code == 0);
  CHECK(has(sortie({"run", "--shell", "--", "a", "b"}).output, "one argument, not 2"));
}

TEST_CASE("a program or hosts in the config's place") {
  const Finished program = sortie({"run", "/bin/true"});
  CHECK(program.code == 2);
  CHECK(has(program.output,
            "/bin/true: is a program, not a config; a program comes after --, as "
            "in `sortie run -- /bin/true`"));
  CHECK(has(sortie({"check", "gpu[01-04]"}).output, "did you mean --hosts 'gpu[01-04]'?"));
}

TEST_CASE("the config is given by its place or by --config, in every verb of a job") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "job.toml", "[runner]\nhosts = [\"h1\"]\nprogram = [\"./x\"]\n");
  const std::string file = dir.str("job.toml");
  for (const std::vector<std::string>& verb :
       {std::vector<std::string>{"plan"}, {"config", "show"}}) {
    std::vector<std::string> placed = verb, named = verb;
    placed.push_back(file);
    named.insert(named.end(), {"--config", file});
    CHECK(sortie(placed).code == 0);
    CHECK(sortie(placed).output == sortie(named).output);
  }
  for (const char* verb : {"run", "check"})
    for (const char* option : {"--config", ""}) {
      std::vector<std::string> words = {verb};
      if (*option != '\0') words.emplace_back(option);
      words.push_back(dir.str("none.toml"));
      CHECK(sortie(words).code == 9);
    }
  const Finished twice = sortie({"plan", file, "--config", file});
  CHECK(twice.code == 2);
  for (const auto& verb : all_verbs()) {
    std::vector<std::string> asked = verb;
    asked.push_back("--help");
    const std::string help = sortie(asked).output;
    CAPTURE(verb);
    // Verbs that select hosts, by --hosts or by an argument, also accept exclusions and groups.
    if (has(help, "Hosts: 'gpu[01-04],h7,@group,!gpu03'"))
      for (const char* option : {"\n  --exclude ", "\n  --groups "})
        CHECK_MESSAGE(has(help, option), option);
    // Verbs that connect to hosts accept a config and the settings of SSH.
    if (has(help, "\n  --hosts ") || has(help, "\n  --ssh-config "))
      for (const char* option : {"--config", "--set ", "--ssh-config "})
        CHECK_MESSAGE(has(help, option), option);
  }
}

TEST_CASE("--exclude leaves hosts out of a job, with their slots") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "groups.toml", "gpu = \"g[1-4]\"\nbad = \"g2\"\n");
  test::write_text(dir / "hosts", "g1 slots=2\ng2 slots=2\ng3 slots=0,5\n");
  test::write_text(dir / "job.toml",
                   "[runner]\nhosts_file = \"" + dir.str("hosts") + "\"\nprogram = [\"x\"]\n");
  const std::string groups = dir.str("groups.toml");
  const Finished file =
      sortie({"plan", dir.str("job.toml"), "--exclude", "@bad", "--groups", groups});
  CHECK_MESSAGE(file.output.starts_with("4 ranks on 2 hosts\n"), file.output);
  CHECK(has(file.output, "  g3       2      0       0\n           3      1       5\n"));
  CHECK(sortie({"plan", "--hosts", "@gpu", "--exclude", "@bad,g4", "--groups", groups, "--", "x"})
            .output.starts_with("2 ranks on 2 hosts\n"));
  for (const char* verb : {"push", "pull"}) {
    const Finished none = sortie(
        {verb, "--hosts", "@gpu", "--exclude", "@gpu", "--groups", groups, "/etc/hostname", "x/"});
    CHECK(none.code == 2);
    CHECK_MESSAGE(has(none.output, "no host is left"), none.output);
  }
}

TEST_CASE("verbs about a run take the last one when none is named") {
  const test::ScopedTempDir dir;
  const std::string state = "XDG_STATE_HOME=" + dir.str("state") + " ";
  const std::string binary = SORTIE_BINARY;
  CHECK(has(shell(state + binary + " status").output, "last: there is no run yet"));
  REQUIRE(shell(state + binary + " run --set runner.mpi=off -q -- echo the words").code == 0);
  for (const char* verb : {"status", "logs", "attach", "stop", "report"}) {
    CAPTURE(verb);
    CHECK(shell(state + binary + " " + verb).code == 0);
  }
  CHECK(shell(state + binary + " logs --grep words").output.find("the words") != std::string::npos);
}

TEST_CASE("help VERB is VERB --help") {
  CHECK(sortie({"help"}).output == sortie({"--help"}).output);
  for (std::vector<std::string> verb : all_verbs()) {
    std::vector<std::string> asked = {"help"};
    asked.insert(asked.end(), verb.begin(), verb.end());
    verb.push_back("--help");
    CHECK(sortie(asked).output == sortie(verb).output);
  }
  CHECK(has(sortie({"help", "rnu"}).output, "did you mean `run`?"));
  CHECK(has(sortie({"help", "config", "shwo"}).output, "did you mean `show`?"));
}

TEST_CASE("groups complete after @, in every element, excluded ones too") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "groups.toml", "gpu = \"g[1-4]\"\ngood = \"g1\"\ncpu = \"c1\"\n");
  const std::string groups = dir.str("groups.toml");
  using Words = std::vector<std::string>;
  CHECK(after({"exec", "--groups", groups, "--hosts", "@"}) ==
        Words{"@cpu", "@good", "@gpu", ":nospace"});
  CHECK(after({"run", "--groups=" + groups, "--hosts", "h1,!@g"}) ==
        Words{"h1,!@good", "h1,!@gpu", ":nospace"});
  CHECK(after({"pull", "--groups", groups, "--exclude=@c"}) == Words{"--exclude=@cpu", ":nospace"});
  CHECK(after({"exec", "--groups", groups, "--hosts", "h"}) == Words{":nospace"});
  CHECK(after({"exec", "--groups", dir.str("none"), "--hosts", "@"}) == Words{":words"});
  CHECK(holds(after({"config", "init", "--preset", "gpt2-1"}), "gpt2-124m"));
}

TEST_CASE("failures that differ in the host alone are one") {
  const auto folded = fold_failures({
      {"h1", "connect: h1 port 22: refused"},
      {"h2", "resolve: name h2: not known"},
      {"h3", "connect: h3 port 22: refused"},
      {"10.0.0.4", "connect: 10.0.0.4 port 22: refused"},
      {"h5", "route: 10.0.0.5:22 to [fd00::5]: down."},
      {"h6", "route: 10.0.0.6:22 to [fd00::6]: down."},
      {"h22", "resolve: name h2: not known"},
  });
  REQUIRE(folded.size() == 4);
  CHECK(folded[0].hosts == std::vector<std::string>{"h1", "h3", "10.0.0.4"});
  CHECK(folded[0].text == "connect: <host> port 22: refused");
  CHECK(folded[1].text == "resolve: name h2: not known");  // a single failure keeps its text
  CHECK(folded[2].text == "route: <address>:22 to [<address>]: down.");
  CHECK(folded[3].hosts == std::vector<std::string>{"h22"});  // its text names another host
  CHECK(fold_equal({{"h1", "at h1"}, {"h2", "at h2"}, {"h3", "at h1"}}).size() == 2);
}

}  // namespace
}  // namespace sortie::launcher
