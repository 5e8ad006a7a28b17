// The command line of the built `sortie`.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/config/describe.h"
#include "common/config/fields.h"
#include "tests/launcher/command_line.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace sortie::launcher {
namespace {

using Json = nlohmann::json;
using test::has;
using test::shell;
using test::sortie;
using testing::Finished;

TEST_CASE("what is mistyped is answered with what is near, and exit code 2") {
  struct Row {
    std::vector<std::string> arguments;
    std::string near;
  };
  for (const Row& row :
       {Row{{"rnu"}, "did you mean `run`?"},
        Row{{"pan", "x.toml"}, "did you mean `plan`?"},
        Row{{"config", "shwo"}, "did you mean `show`?"},
        Row{{"run", "--hots", "a"}, "did you mean `--hosts`?"},
        Row{{"plan", "--jsno"}, "did you mean `--json`?"},
        Row{{"config", "show", "--orgin"}, "did you mean `--origin`?"},
        Row{{"plan", "--sett=a.b=1"}, "did you mean `--set`?"},
        Row{{"xyzzy"}, "sortie: no verb `xyzzy`; see `sortie --help`"},
        Row{{}, "sortie: a verb is missing; see `sortie --help`"},
        Row{{"config"}, "sortie: config: a verb is missing; use "},
        Row{{"nodes", "list"}, "sortie: nodes: no verb `list`; use ls, cordon, "},
        Row{{"help", "nodes", "list"}, "sortie: nodes: no verb `list`; use ls, cordon, "},
        Row{{"push", "--hosts", "a", "b"}, "sortie: push: "},
        Row{{"push", "--hosts", "a", "b"}, "see `sortie push --help`"},
        Row{{"sites", "add", "x"},
            "sortie: sites add: hosts is missing; see `sortie sites add --help`"},
        Row{{"--hots"}, "sortie: "},
        Row{{"run", "--slots", "0", "--", "true"}, "--slots"},
        Row{{"run", "--slots", "4097", "--", "true"}, "--slots"},
        Row{{"run", "--"}, "nothing follows --"},
        Row{{"run", "--", ""}, "the program after -- has an empty name"},
        Row{{"run"}, "neither a config file nor a program"},
        Row{{"plan", "--set", "runner.name=x"}, "sortie: plan: neither a config file"},
        Row{{"plan", "--hosts", "a[1-", "--", "true"}, "a[1-"},
        Row{{"run", "--hosts", "", "--", "true"}, "--hosts: the value is empty"},
        Row{{"plan", "--hosts=", "--", "true"}, "--hosts: the value is empty"},
        Row{{"exec", "--hosts", "", "--", "true"}, "--hosts: the value is empty"},
        Row{{"exec", "--hosts", "a", "--output-dir", "", "--", "true"}, "--output-dir: the value"},
        Row{{"check", "--ssh-config", "", "--hosts", "a"}, "--ssh-config: the value is empty"},
        Row{{"push", "--hosts", "a", "", "x"}, "paths: the value is empty"},
        Row{{"push", "--hosts", "localhost", "/", "/x/"},
            "sortie: /: the root of the file system can not be pushed, because it has no name"},
        Row{{"check", "--hosts", "localhost", "--comm"},
            "sortie: check --comm: measures the links between hosts, and there is only one host"},
        Row{{"logs", ""}, "run: the value is empty"},
        Row{{"config", "show", ""}, "config: the value is empty"},
        Row{{"run", "--set", "", "--", "true"}, "--set: the value is empty"}}) {
    CAPTURE(row.near);
    const Finished result = sortie(row.arguments);
    CHECK_MESSAGE(has(result.output, row.near), result.output);
    CHECK(result.code == 2);
    CHECK(std::ranges::count(result.output, '\n') == 1);  // one error takes one line
  }
}

TEST_CASE("flags after -- are the program's") {
  const Finished result = sortie({"plan", "--json", "--", "prog", "--hots", "--", "-x", "a b"});
  REQUIRE(result.code == 0);
  CHECK(Json::parse(result.output)["argv"] == Json{"prog", "--hots", "--", "-x", "a b"});
}

TEST_CASE("help and version are no errors") {
  CHECK(sortie({"--help"}).code == 0);
  CHECK(has(sortie({"run", "--help"}).output, "--ssh-config"));
  CHECK(sortie({"--version"}).output.starts_with("sortie "));
}

TEST_CASE("plan --connect refuses two names of one machine, as run does") {
  const auto plan = [](const std::string& same) {
    return sortie({"plan", "--connect", "--hosts", "h1,h2", "--set", "runner.network.interface=lo",
                   "--set", R"(runner.transport=["env","AT={host}"])", "--set",
                   "runner.allow_same_machine=" + same, "--", "true"});
  };
  const Finished refused = plan("false");
  CHECK(refused.code == 2);
  CHECK_MESSAGE(has(refused.output, "h1 and h2 are two names of one machine"), refused.output);
  const Finished accepted = plan("true");
  CHECK_MESSAGE(!has(accepted.output, "two names"), accepted.output);
}

TEST_CASE("plan shows the job of a config, with the command line over it") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "job.toml",
                   "[runner]\nhosts = [\"a slots=2\", \"b\"]\nprogram = [\"./x\"]\n");
  const Finished text = sortie({"plan", dir.str("job.toml")});
  CHECK(text.code == 0);
  CHECK(text.output.starts_with("3 ranks on 2 hosts\n"));
  const Finished as_json = sortie({"plan", dir.str("job.toml"), "--hosts", "n[1-3]", "--slots", "2",
                                   "--set", "runner.master_port=1234", "--json", "--", "other"});
  REQUIRE(as_json.code == 0);
  const Json plan = Json::parse(as_json.output);
  CHECK(plan["world_size"] == 6);
  CHECK(plan["master_port"] == 1234);
  CHECK(plan["argv"] == Json{"other"});
  CHECK(plan["hosts"][2]["name"] == "n3");
}

TEST_CASE("a config's problems come all at once, with their places") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "job.toml", "[runner]\nhots = [\"a\"]\n[model]\nhidden_size = \"x\"\n");
  const Finished result = sortie({"plan", dir.str("job.toml")});
  CHECK(result.code == 2);
  CHECK(has(result.output, "job.toml:2:1: "));
  CHECK(has(result.output, "hosts"));
  CHECK(has(result.output, "job.toml:4:15: "));
  CHECK(sortie({"plan", dir.str("none.toml")}).code == 9);
}

TEST_CASE("config show --origin tells where each value comes from, options included") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "job.toml", "[trainer]\nseed = 7\n[runner]\nprogram = [\"x\"]\n");
  const std::string file = dir.str("job.toml");
  const Finished result =
      sortie({"config", "show", file, "--all", "--origin", "--set", "trainer.threads=3", "--hosts",
              "a,b", "--slots", "2", "--ssh-config", "/c", "--", "p", "q"});
  REQUIRE(result.code == 0);
  const auto line = [&](std::string_view key) -> std::string {
    std::istringstream lines(result.output);
    for (std::string text; std::getline(lines, text);)
      if (text.starts_with(std::string(key) + " = ")) return text;
    return "";
  };
  CHECK(has(line("seed"), "= 7 "));
  CHECK(line("seed").ends_with("# " + file + ":2:8"));
  CHECK(line("threads").ends_with("# --set"));
  CHECK(line("keep_last").ends_with("# default"));
  CHECK(has(line("hosts"), "[\"a\", \"b\"]"));
  CHECK(line("hosts").ends_with("# --hosts"));
  CHECK(line("default_slots").ends_with("# --slots"));
  CHECK(line("config_file").ends_with("# --ssh-config"));
  CHECK(line("program").ends_with("# command line"));
  // Without origins the output is a config again, with and without --all.
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--all"}}) {
    std::vector<std::string> show = {"config", "show", file}, again = {"config", "show"};
    show.insert(show.end(), more.begin(), more.end());
    test::write_text(dir / "again.toml", sortie(show).output);
    again.push_back(dir.str("again.toml"));
    again.insert(again.end(), more.begin(), more.end());
    CHECK(sortie(again).output == sortie(show).output);
  }
  CHECK(sortie({"config", "show", file}).output ==
        "[runner]\nprogram = [\"x\"]\n\n[trainer]\nseed = 7\n");
}

TEST_CASE("schema, init and reference are what the field table gives") {
  CHECK(sortie({"config", "schema"}).output == config::json_schema());
  CHECK(sortie({"config", "init"}).output == config::init_text());
  CHECK(sortie({"config", "init", "--all"}).output == config::init_text({.all = true}));
  CHECK(sortie({"config", "init", "--preset", "pythia-70m"}).output ==
        config::init_text({.preset = "pythia-70m"}));
  const Finished unknown = sortie({"config", "init", "--preset", "gpt5"});
  CHECK(unknown.code == 2);
  CHECK(has(unknown.output, "sortie: --preset: \"gpt5\" is no preset; use gpt2-124m, "));
  CHECK(sortie({"config", "reference"}).output == config::reference_markdown());
  const test::ScopedTempDir dir;
  test::write_text(dir / "job.toml", sortie({"config", "init"}).output);
  CHECK(sortie({"config", "show", dir.str("job.toml")}).code == 0);
}

TEST_CASE("config diff compares files and runs by their values") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "a.toml", "[trainer]\nseed = 7\n[model]\nnum_layers = 4\n");
  test::write_text(dir / "b.toml", "[trainer]\nseed = 8\n");
  const Finished differ = sortie({"config", "diff", dir.str("a.toml"), dir.str("b.toml")});
  CHECK(differ.code == 1);
  CHECK(differ.output == "trainer.seed: 7 -> 8\n");  // 4 layers are the default
  const Finished same = sortie({"config", "diff", dir.str("a.toml"), dir.str("a.toml")});
  CHECK(same.code == 0);
  CHECK(same.output == "");
  CHECK(sortie({"config", "diff", dir.str("a.toml")}).code == 2);
  const Finished none = sortie({"config", "diff", dir.str("a.toml"), "zzzz-no-run"});
  CHECK(none.code == 9);
  CHECK(has(none.output, "zzzz-no-run: neither a file nor a run"));
  // Accepts runs, by id or as `last`.
  const std::string state = "XDG_STATE_HOME=" + dir.str("state") + " ";
  const std::string binary = SORTIE_BINARY;
  REQUIRE(
      shell(state + binary + " run --set runner.mpi=off --set trainer.seed=7 -q -- true").code ==
      0);
  const Finished run = shell(state + binary + " config diff last " + dir.str("b.toml"));
  CHECK(run.code == 1);
  CHECK(has(run.output, "trainer.seed: 7 -> 8\n"));
  CHECK(has(run.output, "runner.program: [\"true\"] -> []\n"));
}

TEST_CASE("all problems of a job come at once: keys, rules, files to train on, batch and hosts") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "job.toml",
                   "[runner]\nhosts = [\"h[1-2] slots=2\"]\n[trainer]\nsave_intervall = 5\n"
                   "[topology]\nmicro_batch_size = 1\nglobal_batch_size = 6\n[data]\n"
                   "data_prefixes = []\n");
  const std::string file = dir.str("job.toml");
  for (const char* verb : {"plan", "run", "check"}) {
    const Finished result = sortie({verb, file, "--set", "model.num_attention_heads=3"});
    CAPTURE(result.output);
    CHECK(result.code == 2);
    CHECK(has(result.output, file + ":4:1: unknown key trainer.save_intervall"));
    CHECK(has(result.output, file + ":7:21: topology.global_batch_size: 6 is no multiple of 4 = "));
    CHECK(has(result.output, file + ":9:17: data.data_prefixes: no token files"));
    CHECK(has(result.output, "--set model.num_attention_heads=3: model.hidden_size: "));
  }
  // --slots and --hosts count too, and errors in them are in the same list.
  const Finished options = sortie({"plan", file, "--hosts", "a", "--slots", "4", "--exclude", "b"});
  CHECK(has(options.output, "command line: --exclude: \"b\" is not among the hosts"));
  CHECK(has(options.output, file + ":4:1: unknown key"));
  CHECK(has(options.output, file + ":9:17: data.data_prefixes: no token files"));
  CHECK_FALSE(has(sortie({"plan", file, "--hosts", "a", "--slots", "3"}).output, "no multiple"));
  // A wrong program is no job of sortie-train.
  test::write_text(dir / "program.toml", "[runner]\nprogram = \"sh\"\n");
  const Finished program = sortie({"plan", dir.str("program.toml"), "--hosts", "a"});
  CHECK(program.code == 2);
  CHECK(has(program.output, "runner.program: must be a list of strings"));
  CHECK_FALSE(has(program.output, "no token files"));
  // No check of data for verbs that start no training.
  CHECK_FALSE(has(sortie({"config", "show", file}).output, "no token files"));
}

TEST_CASE("a preset in --set over keys of the file: the plan says what wins") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "job.toml",
                   "[model]\nhidden_size = 128\n[data]\ndata_prefixes = [\"/d\"]\n");
  const std::string file = dir.str("job.toml");
  const std::string warning = "keys that are set win over the preset: model.hidden_size = 128 (" +
                              file + ":2:15) instead of 512;";
  const Finished text = sortie({"plan", file, "--set", "model.preset=pythia-70m"});
  CHECK(has(text.output, "gpt-neo-x (pythia-70m with hidden_size = 128): "));
  CHECK(has(text.output, "  warning   --set model.preset=pythia-70m: " + warning));
  const Finished as_json = sortie({"plan", "--json", file, "--set", "model.preset=pythia-70m"});
  CHECK(has(Json::parse(as_json.output)["warnings"][0].get<std::string>(), warning));
  CHECK(has(sortie({"config", "show", file, "--set", "model.preset=pythia-70m"}).output,
            "sortie: warning: --set model.preset=pythia-70m: " + warning));
}

TEST_CASE("output that can not be written is an error") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "file", "text");
  const std::string push = " --hosts localhost " + dir.str("file") + " " + dir.str("pushed");
  const std::string pull = " --hosts localhost " + dir.str("file") + " " + dir.str("pulled");
  for (const std::string& what :
       {std::string("config schema"), std::string("config show"), std::string("plan -- true"),
        std::string("plan --json -- true"), "push" + push, "push --json" + push, "pull" + pull,
        "pull --json" + pull, std::string("--help")}) {
    CAPTURE(what);
    const Finished result = shell(std::string(SORTIE_BINARY) + " " + what + " > /dev/full");
    CHECK(result.code == 9);
    CHECK(result.output == "sortie: write to stdout: No space left on device\n");
  }
  // Of C++'s streams, which drop the reason.
  const Finished version = shell(std::string(SORTIE_BINARY) + " --version > /dev/full");
  CHECK(version.code == 9);
  CHECK(version.output.starts_with("sortie: write to stdout: "));
}

TEST_CASE("push and pull count in words that fit, and name a place only where something is") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "file", "text");
  const auto said = [&](const std::string& verb, const char* from, const char* to) {
    return sortie({verb, "--hosts", "localhost", dir.str(from), dir.str(to)}).output;
  };
  CHECK(said("push", "file", "pushed").starts_with("1 file, 4 B, on 1 of 1 host in "));
  const std::string pulled = said("pull", "file", "pulled");
  CHECK_MESSAGE(pulled.starts_with("1 file, 4 B, from 1 of 1 host in "), pulled);
  CHECK(pulled.ends_with("; they are in " + dir.str("pulled") + "/HOST/\n"));
  const std::string none = said("pull", "no*", "none");
  CHECK_MESSAGE(has(none, "0 files, 0 B, from 1 of 1 host in "), none);
  CHECK_FALSE(has(none, "they are in"));
  CHECK(has(none, "not_found: "));
}

TEST_CASE("pull: symlinks that lead out of the copy are named once for all hosts that have them") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "tree/file", "text");
  for (const char* name : {"a", "b", "c", "d"})
    std::filesystem::create_symlink("/etc/hosts", dir / "tree" / name);
  const auto pulled = [&](const std::vector<std::string>& options) {
    std::vector<std::string> words = {"pull", "--hosts", "h[1-3]", "--set",
                                      R"(runner.transport=["env","AT={host}"])"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {dir.str("tree"), dir.str("in")});
    return sortie(words);
  };
  const Finished text = pulled({});
  CHECK(text.code == 0);
  CHECK(test::count_of(text.output, "left out") == 1);
  CHECK_MESSAGE(has(text.output,
                    "h[1-3]: 4 symlinks left out, because what they point to is not in the copy: "
                    "tree/a -> /etc/hosts, tree/b -> /etc/hosts, tree/c -> /etc/hosts ...\n"),
                text.output);
  const Finished as_json = pulled({"--json"});
  const Json hosts = Json::parse(as_json.output.substr(0, as_json.output.rfind('}') + 1))["hosts"];
  REQUIRE(hosts.size() == 3);
  for (const Json& host : hosts) {
    CHECK(host["ok"] == true);
    CHECK(host["links_left_out"] == Json{"tree/a -> /etc/hosts", "tree/b -> /etc/hosts",
                                         "tree/c -> /etc/hosts", "tree/d -> /etc/hosts"});
  }
  std::filesystem::remove_all(dir / "in");
  for (const char* name : {"a", "b", "c", "d"}) std::filesystem::remove(dir / "tree" / name);
  const std::string none = pulled({"--json"}).output;
  CHECK_FALSE(has(none, "left"));
}

TEST_CASE("a run whose output can not be written says where it is whole") {
  const test::ScopedTempDir dir;
  const std::string run = std::string(SORTIE_BINARY) + " run --set runner.mpi=off --set " +
                          "logger.log_dir=" + dir.str("state") + " -- sh -c ";
  const Finished succeeded = shell(run + "'echo text' > /dev/full");
  CHECK(succeeded.code == 9);
  const auto folder = std::filesystem::canonical(dir.path() / "state/runs/latest");
  CHECK(has(succeeded.output, "sortie: write to stdout: No space left on device; `sortie logs " +
                                  folder.filename().string() + "` has all output of the ranks"));
  CHECK(test::read_text(folder / "logs/rank-0.out") == "text\n");
  CHECK(has(test::read_text(folder / "result.json"), "\"exit_code\": 0"));
  CHECK(shell(run + "'echo text; exit 3' > /dev/full").code == 3);
}

TEST_CASE("a stderr that takes no text changes no exit code") {
  const test::ScopedTempDir dir;
  const std::string nothing = dir.str("nothing") + " " + dir.str("copy");
  for (const auto& [what, code] :
       std::vector<std::pair<std::string, int>>{{"exec --hosts 'a[1-' -- true", 2},
                                                {"ssh 'a[1-' true", 2},
                                                {"push --hosts localhost " + nothing, 9},
                                                {"pull --hosts localhost " + nothing, 9}}) {
    CAPTURE(what);
    CHECK(shell(std::string(SORTIE_BINARY) + " " + what + " 2> /dev/full").code == code);
  }
}

TEST_CASE("text for a closed stdout or stderr is written into no file") {
  const test::ScopedTempDir dir;
  // The command line itself does not contain the text.
  const std::string run =
      std::string(SORTIE_BINARY) +
      " run --set runner.mpi=off --shell -- 'echo from\"-\"rank; echo from\"-\"rank >&2'";
  CHECK(shell("XDG_STATE_HOME=" + dir.path().string() + " " + run + " >&- 2>&-").code == 0);
  CHECK(shell("cd " + dir.str("sortie/runs/latest/") + " && grep -rl from-rank . | sort").output ==
        "./logs/rank-0.err\n./logs/rank-0.out\n");
  const Finished told = shell(std::string(SORTIE_BINARY) + " config show >&-");
  CHECK(told.code == 9);
  CHECK(told.output == "sortie: write to stdout: Bad file descriptor\n");
}

}  // namespace
}  // namespace sortie::launcher
