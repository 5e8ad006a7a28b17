// Completions, and the completion scripts in three real shells.
#include "common/base/shell_text.h"
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
  CHECK(after({"chaos", "last", "--faults", "kill,s"}) ==
        std::vector<std::string>{"kill,stop", "kill,supervisor", ":words"});
  CHECK(after({"chaos", "--faults="}).size() == 6);
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

/// Types each of `typed` and the completion key in a real bash in a terminal of its own, where
/// `setup` has been run; returns the lines that result.
std::vector<std::string> in_bash(const test::ScopedTempDir& dir, const std::string& setup,
                                 const std::vector<std::string>& typed) {
  // C-x d shows the line between angle brackets and empties it.
  test::write_text(dir / "rc", "PS1=; cd; source <(sortie completion bash)\n" + setup +
                                   "\nshow() { echo \"<$READLINE_LINE>\"; READLINE_LINE=; }\n"
                                   "bind -x '\"\\C-xd\": show'\necho '<begun>'\n");
  std::string script = R"(
zmodload zsh/zpty
zpty session bash --noprofile --rcfile $HOME/rc -i
drain() { local out all=; repeat 1000 { if zpty -rt session out; then all+=$out; [[ $all == *\>* ]] && break; else sleep 0.05; fi }; print -r -- $all }
drain
type() { zpty -n -w session $1$'\t\C-xd'; drain }
)";
  for (const std::string& line : typed) script += "type " + shell_word(line) + "\n";
  const std::string shown = in_shell(dir, "zsh", script + "zpty -d session\n");
  std::vector<std::string> out;
  for (std::size_t begin = 0; (begin = shown.find('<', begin)) != shown.npos;) {
    const std::size_t end = shown.find('>', begin);
    if (const std::string line = shown.substr(begin + 1, end - begin - 1); line != "begun")
      out.push_back(line);
    begin = end;
  }
  return out;
}

TEST_CASE("bash completes") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "job.toml", "");
  fs::create_directories(dir / ".config/sortie");
  test::write_text(dir / ".config/sortie/groups.toml", "good = \"g1\"\ncpu = \"c[1-2]\"\n");
  using Words = std::vector<std::string>;
  // Where bash completes the names of hosts itself, it also splits words at the @.
  for (const char* setup : {"shopt -s hostcomplete", "shopt -u hostcomplete"}) {
    CAPTURE(setup);
    const Words lines = in_bash(
        dir, setup,
        {"sortie expl", "sortie run --ho", "sortie run jo", "sortie run --config=jo",
         "sortie plan --set runner.mp", "sortie plan --set=runner.mp",
         "sortie plan --set runner.mpi=of", "sortie exec --hosts @go", "sortie exec --hosts=@go",
         "sortie exec --hosts h01,@go", "sortie exec --hosts @cpu,!@go",
         "sortie exec --hosts 'h[1-2],@go", "sortie exec --hosts=\"@go"});
    CHECK(lines == Words{"sortie explain ", "sortie run --hosts ", "sortie run job.toml ",
                         "sortie run --config=job.toml ", "sortie plan --set runner.mpi=",
                         "sortie plan --set=runner.mpi=", "sortie plan --set runner.mpi=off ",
                         "sortie exec --hosts @good", "sortie exec --hosts=@good",
                         "sortie exec --hosts h01,@good", "sortie exec --hosts @cpu,!@good",
                         "sortie exec --hosts 'h[1-2],@good'", "sortie exec --hosts=\"@good\""});
  }
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
