// What is wrong with arguments that do not parse, in words of this program.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/cli/verb.h"

namespace sortie::cli {

/// A command line in which an option or a word is not where Sortie has it.
struct Slip {
  std::string option;  // the first option that the verb does not have; "" if it has all of them
  std::string ours;    // the option that was meant; "" if unknown
  std::string form;    // the whole command in the form that works here; "" if unknown
};

/// Compares `arguments`, without `--` and the words after it, with the tree of verbs, and knows the
/// conventions of pdsh, mpirun and torchrun: for `exec h[1-2] uptime -p` the form is
/// "sortie exec --hosts 'h[1-2]' -- uptime -p". `program`: the words after `--`; nullptr if there
/// is no `--`.
Slip find_slip(const CLI::App& root, const Verbs& verbs, const std::vector<std::string>& arguments,
               const Program* program);

/// The message for `error`, which CLI11 threw for these arguments: what is wrong, and what the user
/// probably meant.
std::string parse_message(const CLI::App& root, const Verbs& verbs,
                          const std::vector<std::string>& arguments, const Program* program,
                          const CLI::ParseError& error);

/// True if `word` has blanks, variables, pipes, redirections or the like, which only a shell
/// interprets.
bool looks_like_shell_line(std::string_view word);

}  // namespace sortie::cli
