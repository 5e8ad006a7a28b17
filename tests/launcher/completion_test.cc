// Completions, and the completion scripts in three real shells.
#include "common/config/fields.h"
#include "tests/launcher/command_line.h"

namespace sortie::launcher {
namespace {

namespace fs = std::filesystem;
using test::after;
using test::all_verbs;
using test::has;
using test::holds;
using test::lines_of;
using test::sortie;
using testing::Finished;

TEST_CASE("completions know verbs, flags, words, keys of the config and where files stand") {
  for (const auto& verb : all_verbs())
    if (verb.size() == 2) CHECK(holds(after({verb[0], ""}), verb[1]));
  CHECK(holds(after({"ex"}), "explain"));
  CHECK(holds(after({"run", "--ho"}), "--hosts"));
  CHECK(holds(after({"-q", "run", "--q"}), "--quiet"));
  CHECK(after({"completion", "z"}) == std::vector<std::string>{"zsh", ":words"});
  CHECK(after({"run", ""}).back() == ":files");
  CHECK(after({"run", "--ssh-config", ""}).back() == ":files");
  CHECK(after({"run", "--", "x"}) == std::vector<std::string>{":files"});
  CHECK(after({"explain", "host_"}) == std::vector<std::string>{"host_key", ":words"});
  CHECK(holds(after({"man", "pl"}), "plan"));
  std::vector<std::string> keys = after({"run", "job.toml", "--set", ""});
  CHECK(keys.back() == ":nospace");
  CHECK(keys.size() == config::fields().size() + 1);
  CHECK(after({"plan", "--set", "runner.mpi=o"}) ==
        std::vector<std::string>{"runner.mpi=on", "runner.mpi=off", ":words"});
  CHECK(after({"plan", "--set=runner.mp"}) ==
        std::vector<std::string>{"--set=runner.mpi=", ":nospace"});
  CHECK(after({"plan", "--set", "logger.tensorboard=t"}) ==
        std::vector<std::string>{"logger.tensorboard=true", ":words"});
}

/// Output of `script` in a shell that finds sortie by its PATH.
std::string in_shell(const test::ScopedTempDir& dir, const std::string& program,
                     const std::string& script) {
  test::write_text(dir / "script", script);
  const std::string path =
      "PATH=" + fs::path(SORTIE_BINARY).parent_path().string() + ":/usr/local/bin:/usr/bin:/bin";
  const Finished done = testing::run({"/usr/bin/env", "-i", path, "HOME=" + dir.path().string(),
                                      "TERM=dumb", "LC_ALL=C.UTF-8", program, dir.str("script")});
  CHECK_MESSAGE(done.code == 0, done.output);
  return done.output;
}

TEST_CASE("bash completes") {
  const test::ScopedTempDir dir;
  const std::string source =
      "source <(sortie completion bash)\ncompopt() { echo \"opt $*\"; }\n"
      "try() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _sortie; "
      "echo \"${COMPREPLY[*]}\"; }\n";
  const auto answer = [&](const std::string& words) {
    return in_shell(dir, "bash", source + "try " + words + "\n");
  };
  CHECK(answer("sortie expl") == "explain\n");
  CHECK(answer("sortie run --ho") == "--hosts\n");
  CHECK(answer("sortie plan --set runner.mp") == "opt -o nospace\nrunner.mpi=\n");
  // Words as bash splits them: at the equals sign.
  CHECK(answer("sortie plan --set runner.mpi = o") == "on off\n");
  CHECK(answer("sortie plan --set runner.mpi =").starts_with("auto on off\n"));
  CHECK(answer("sortie plan --set = runner.mp") == "opt -o nospace\nrunner.mpi=\n");
  CHECK(answer("sortie run ''").starts_with("opt -o default\n"));
  CHECK(in_shell(dir, "bash", source + "complete -p sortie\n") == "complete -F _sortie sortie\n");
}

TEST_CASE("zsh completes") {
  // Drives a real line editor in a separate terminal through zpty, and presses the completion key.
  const test::ScopedTempDir dir;
  test::write_text(dir / "functions/_sortie", sortie({"completion", "zsh"}).output);
  const std::string script = R"(
zmodload zsh/zpty
zpty session zsh -f -i
drain() { local out all=; repeat 1000 { if zpty -rt session out; then all+=$out; [[ $all == *$1* ]] && break; else sleep 0.05; fi }; print -r -- $all }
zpty -w session "PS1= ; fpath=($HOME/functions \$fpath); autoload -Uz compinit; compinit -u -D"
zpty -w session "zstyle ':completion:*' list-separator '--'; print rea''dy"
drain ready > /dev/null
type() { zpty -n -w session $1$'\t'; drain $2; zpty -n -w session $'\C-u' }
type 'sortie expl' 'explain '
type 'sortie run --ho' '--hosts'
type 'sortie plan --set runner.mp' 'runner.mpi='
type 'sortie plan --set runner.mpi=of' 'runner.mpi=off'
zpty -d session
)";
  const std::string shown = in_shell(dir, "zsh", script);
  for (const char* part :
       {"sortie explain ", "sortie run --hosts", "runner.mpi=", "runner.mpi=off"})
    CHECK_MESSAGE(has(shown, part), shown);
}

TEST_CASE("fish completes") {
  const test::ScopedTempDir dir;
  const std::string source = "sortie completion fish | source\n";
  const auto answer = [&](const std::string& line) {
    std::vector<std::string> out =
        lines_of(in_shell(dir, "fish", source + "complete -C '" + line + "'\n"));
    for (std::string& word : out) word = word.substr(0, word.find('\t'));
    return out;
  };
  using Words = std::vector<std::string>;
  CHECK(answer("sortie expl") == Words{"explain"});
  CHECK(answer("sortie run --ho") == Words{"--hosts"});
  CHECK(answer("sortie plan --set runner.mp") == Words{"runner.mpi="});
  CHECK(answer("sortie plan --set runner.mpi=of") == Words{"runner.mpi=off"});
  CHECK(holds(answer("sortie "), "config"));
  CHECK(holds(answer("sortie config "), "show"));
}

}  // namespace
}  // namespace sortie::launcher
