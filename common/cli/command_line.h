// From the arguments of a program to the verb that they name.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/cli/verb.h"

namespace sortie::cli {

struct Choice {
  const Verb* verb = nullptr;  // null: help or the version was asked for and printed
  int exit_code = 0;           // then
};

/// Cuts off the program behind `--`, parses the rest and finds the verb. The error
/// (ErrorCode::usage) names what was probably meant: the nearest word, or the whole command in its
/// right form.
Result<Choice> choose_verb(CLI::App& root, const Verbs& verbs, Program& program,
                           std::vector<std::string> arguments);

/// The command in its right form, where words stand on the command line that belong behind `--`:
/// `exec h[1-2] uptime -p` is "sortie exec --hosts 'h[1-2]' -- uptime -p". "" where it is something
/// else that is wrong. `arguments` is without the program behind `--`.
std::string with_program_behind_dashes(const CLI::App& root, const Verbs& verbs,
                                       const std::vector<std::string>& arguments);

/// True for one word that only a shell understands: blanks, variables, pipes, redirections.
bool looks_like_shell_line(std::string_view word);

}  // namespace sortie::cli
