// `completion SHELL`, and the hidden verb that its script calls.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "common/cli/common_verbs.h"
#include "common/cli/complete.h"
#include "common/cli/print.h"
#include "common/cli/tree.h"

namespace sortie::cli {
namespace {

// In these scripts @PROGRAM@ is the program's name and @NAME@ the same with _ for -.

// bash splits words at =, : and @, also within what it then replaces: $2, which begins with the @.
// The script joins the parts again, without quotes, and removes from each candidate what stands
// before $2.
constexpr const char* kBash =
    R"SCRIPT(# bash completion for @PROGRAM@; written by `@PROGRAM@ completion bash`
_@NAME@() {
  local words=() word line typed mode=:words i
  for ((i = 1; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]//[\'\"]/}
    if ((i > 1)) && [[ $word == [=:]* || ${words[-1]} == *[=:@] || ($word == @* && ${words[-1]} == *[,!]) ]]; then
      words[-1]+=$word
    else
      words+=("$word")
    fi
  done
  typed=${words[-1]%"${2//[\'\"]/}"}
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
complete -F _@NAME@ @PROGRAM@
)SCRIPT";

constexpr const char* kZsh = R"SCRIPT(#compdef @PROGRAM@
# zsh completion for @PROGRAM@; written by `@PROGRAM@ completion zsh`
_@NAME@() {
  local -a lines found
  local line mode word
  lines=("${(@f)$(command ${(Q)~words[1]} __complete -- "${(@Q)words[2,CURRENT-1]}" "$PREFIX" 2> /dev/null)}")
  mode=${lines[-1]}
  for line in "${(@)lines[1,-2]}"; do
    word=${line%%$'\t'*}
    found+=("${word//:/\\:}:${line#*$'\t'}")
  done
  case $mode in
    :nospace) _describe '@PROGRAM@' found -S '' ;;
    :files) ((${#found})) && _describe '@PROGRAM@' found; _files ;;
    *) _describe '@PROGRAM@' found ;;
  esac
}
if [[ ${funcstack[1]} == _@NAME@ ]]; then
  _@NAME@ "$@"
else
  compdef _@NAME@ @PROGRAM@
fi
)SCRIPT";

constexpr const char* kFish =
    R"SCRIPT(# fish completion for @PROGRAM@; written by `@PROGRAM@ completion fish`
function __@NAME@_complete
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
complete -c @PROGRAM@ -f -a '(__@NAME@_complete)'
)SCRIPT";

std::string with_names(std::string script, const std::string& program) {
  std::string name = program;
  std::ranges::replace(name, '-', '_');
  for (const auto& [mark, text] :
       {std::pair<std::string_view, std::string>{"@PROGRAM@", program}, {"@NAME@", name}})
    for (std::size_t at = 0; (at = script.find(mark, at)) != script.npos; at += text.size())
      script.replace(at, mark.size(), text);
  return script;
}

std::string completion_examples(const std::string& program) {
  const std::string bash = fmt::format("source <({} completion bash)", program);
  const std::string zsh = fmt::format("{0} completion zsh > ~/.zfunc/_{0}", program);
  const std::string fish =
      fmt::format("{0} completion fish > ~/.config/fish/completions/{0}.fish", program);
  return fmt::format(
      "Examples:\n  {:<{}}  for the current shell\n  {:<{}}  for zsh, in a folder of $fpath\n  {}  "
      "for fish\n",
      bash, fish.size(), zsh, fish.size(), fish);
}

}  // namespace

void add_completion_verbs(CLI::App& root, Verbs& verbs, const Program& program, Known known) {
  const auto shell = std::make_shared<std::string>();
  const std::string name = root.get_name();
  CLI::App* completion = root.add_subcommand("completion", "Completions for bash, zsh or fish");
  completion->footer(completion_examples(name));
  completion->add_option("shell", *shell, "Shell")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  verbs.push_back({completion, [shell, name] {
                     const char* script = *shell == "bash" ? kBash : *shell == "zsh" ? kZsh : kFish;
                     return print_text(name, with_names(script, name));
                   }});

  CLI::App* ask = root.add_subcommand("__complete", "Called by the scripts of `completion`");
  ask->group("");  // hidden
  verbs.push_back({ask,
                   [&root, &program, known = std::move(known), name] {
                     return print_text(name, completion_lines(complete(root, program, known)));
                   },
                   true});
}

}  // namespace sortie::cli
