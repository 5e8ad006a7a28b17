// Parses a line at the prompt of `sortie shell`: a line for hosts, for this machine, or for the
// prompt itself. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sortie::launcher {

struct ShellInput {
  enum class Kind {
    nothing,  // empty, or a comment
    remote,   // run `text` on the selected hosts, or on `hosts`
    local,    // !text: run on this machine
    select,   // @HOSTS alone: select hosts for the following lines; @ alone: all hosts
    add,      // +HOSTS: also select these; connects hosts without a shell
    remove,   // -HOSTS: deselect these
    list,     // ?: list the hosts
    folding,  // =: toggle between folded output at the end and live output
    leave,    // exit [N], quit [N]
  };
  Kind kind = Kind::nothing;
  std::string text;
  std::string hosts;          // host expression without the leading '@', '+' or '-'
  std::optional<int> status;  // of leave
  std::string error;          // "why; what to do": the line is invalid
};

ShellInput parse_shell_input(std::string_view line);

/// Whether the line continues in the next one: it ends with an odd number of backslashes.
bool line_goes_on(std::string_view line);

}  // namespace sortie::launcher
