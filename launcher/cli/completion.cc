// `sortie completion SHELL`, and the hidden verb that its script calls.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "launcher/cli/complete.h"
#include "launcher/cli/tree.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace {

constexpr const char* kCompletionFooter = R"(Examples:
  source <(sortie completion bash)                                        this shell
  sortie completion zsh > ~/.zfunc/_sortie                                a folder of $fpath
  sortie completion fish > ~/.config/fish/completions/sortie.fish         every fish
)";

// bash splits words at = and :; they are put together again, and what it already has of the word is
// cut off the answers.
constexpr const char* kBash =
    R"SCRIPT(# bash completion for sortie; written by `sortie completion bash`
_sortie() {
  local words=() word line typed mode=:words i
  for ((i = 1; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if ((i > 1)) && [[ $word == [=:]* || ${words[-1]} == *[=:] ]]; then
      words[-1]+=$word
    else
      words+=("$word")
    fi
  done
  typed=${words[-1]}
  typed=${typed%"${typed##*[=:]}"}
  COMPREPLY=()
  while IFS= read -r line; do
    case $line in
      :*) mode=$line ;;
      *)
        line=${line%%$'\t'*}
        COMPREPLY+=("${line#"$typed"}")
        ;;
    esac
  done < <("${COMP_WORDS[0]/#\~/$HOME}" __complete -- "${words[@]}" 2> /dev/null)
  case $mode in
    :files) compopt -o default ;;
    :nospace) compopt -o nospace ;;
  esac
}
complete -F _sortie sortie
)SCRIPT";

constexpr const char* kZsh = R"SCRIPT(#compdef sortie
# zsh completion for sortie; written by `sortie completion zsh`
_sortie() {
  local -a lines found
  local line mode word
  lines=("${(@f)$(command ${(Q)~words[1]} __complete -- "${(@Q)words[2,CURRENT-1]}" "$PREFIX" 2> /dev/null)}")
  mode=${lines[-1]}
  for line in "${(@)lines[1,-2]}"; do
    word=${line%%$'\t'*}
    found+=("${word//:/\\:}:${line#*$'\t'}")
  done
  case $mode in
    :nospace) _describe 'sortie' found -S '' ;;
    :files) ((${#found})) && _describe 'sortie' found; _files ;;
    *) _describe 'sortie' found ;;
  esac
}
if [[ ${funcstack[1]} == _sortie ]]; then
  _sortie "$@"
else
  compdef _sortie sortie
fi
)SCRIPT";

constexpr const char* kFish =
    R"SCRIPT(# fish completion for sortie; written by `sortie completion fish`
function __sortie_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    set -l program (string replace -r '^~' -- $HOME $words[1])
    set -e words[1]
    for line in (command $program __complete -- $words "$typed" 2>/dev/null)
        switch $line
            case ':files'
                __fish_complete_path "$typed"
            case ':*'
            case '*'
                echo $line
        end
    end
end
complete -c sortie -f -a '(__sortie_complete)'
)SCRIPT";

/// The ids of runs in the usual place, newest last.
std::vector<std::string> known_runs() {
  std::vector<std::string> out;
  const auto state = state_folder("");
  if (!state) return out;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(*state / "runs", error))
    if (const std::string name = entry.path().filename().string(); !name.starts_with("."))
      out.push_back(name);
  std::ranges::sort(out);
  return out;
}

}  // namespace

void add_completion_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* completion = root.add_subcommand("completion", "Completions for bash, zsh or fish");
  completion->footer(kCompletionFooter);
  completion->add_option("shell", *shell, "Shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  verbs.push_back({completion, [shell] {
                     return print_text(*shell == "bash" ? kBash : *shell == "zsh" ? kZsh : kFish);
                   }});

  CLI::App* ask = root.add_subcommand("__complete", "What the scripts of `completion` call");
  ask->group("");  // hidden
  verbs.push_back({ask,
                   [&root, &program] {
                     return print_text(completion_lines(complete(root, program, known_runs())));
                   },
                   true});
}

}  // namespace sortie::launcher
