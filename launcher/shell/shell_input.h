// What a line at the prompt of `sortie shell` is: for hosts, for this machine, or for the prompt
// itself. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sortie::launcher {

struct ShellInput {
  enum class Kind {
    nothing,  // empty, or a comment
    remote,   // `text` on the hosts, or on `hosts`
    local,    // !text
    select,   // @HOSTS alone: the lines that follow go there; @ alone: to all again
    add,      // +HOSTS: there as well, also where there is no shell yet
    remove,   // -HOSTS: there no more
    list,     // ?
    folding,  // =: output folded when the line is over, or as it comes
    leave,    // exit [N], quit [N]
  };
  Kind kind = Kind::nothing;
  std::string text;
  std::string hosts;          // an expression, without the '@', '+' or '-' in front
  std::optional<int> status;  // of leave
  std::string error;          // "why; what to do": nothing is to be done
};

ShellInput parse_shell_input(std::string_view line);

/// Whether the line goes on in the next one: an odd number of backslashes at its end.
bool line_goes_on(std::string_view line);

}  // namespace sortie::launcher
