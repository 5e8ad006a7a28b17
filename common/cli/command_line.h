// Parses the arguments of a program and finds the verb that they name.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/cli/verb.h"

namespace sortie::cli {

struct Choice {
  const Verb* verb = nullptr;  // nullptr: help or the version was requested and has been printed
  int exit_code = 0;           // valid if `verb` is nullptr
};

/// Moves the words after `--` to `program`, parses the rest and finds the verb. An error
/// (ErrorCode::usage) suggests what the user probably meant: the nearest word, or the whole command
/// in its correct form.
Result<Choice> choose_verb(CLI::App& root, const Verbs& verbs, Program& program,
                           std::vector<std::string> arguments);

/// Type name of an option whose value may be empty.
inline constexpr const char* kTextOrNone = "[TEXT]";

/// Throws a CLI::ParseError, which choose_verb() reports, if the value of an option or positional
/// is NaN, or empty without the type name kTextOrNone. choose_verb() calls it after parsing; a
/// program whose verbs run while the command line is parsed calls it before they do.
void refuse_unusable_values(const CLI::App& root);

}  // namespace sortie::cli
