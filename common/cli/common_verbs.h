// Verbs that every program has: help, man, completion. They read the tree of all other verbs. The
// functions keep references to `root`, `verbs` and `program`.
#pragma once

#include <CLI/App.hpp>
#include <string_view>

#include "common/cli/complete.h"
#include "common/cli/verb.h"

namespace sortie::cli {

/// `help [VERB...]`: prints what `VERB --help` prints.
void add_help_verb(CLI::App& root, Verbs& verbs);

/// `man [VERB]`: manual pages in roff. `environment` is the last section of the program's own page,
/// also in roff.
void add_man_verb(CLI::App& root, Verbs& verbs, std::string_view environment);

/// `completion SHELL`, and the hidden verb `__complete` that the shell scripts call.
void add_completion_verbs(CLI::App& root, Verbs& verbs, const Program& program, Known known);

}  // namespace sortie::cli
