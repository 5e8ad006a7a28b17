// Verbs that every program has: help, man, completion. They read the tree of all other verbs.
#pragma once

#include <CLI/App.hpp>
#include <string_view>

#include "common/cli/complete.h"
#include "common/cli/verb.h"

namespace sortie::cli {

/// `help [VERB...]`: what `VERB --help` prints.
void add_help_verb(CLI::App& root, Verbs& verbs);

/// `man [VERB]`: manual pages in roff. `environment` is roff too: the last section of the program's
/// own page; it must outlive the verbs.
void add_man_verb(CLI::App& root, Verbs& verbs, std::string_view environment);

/// `completion SHELL`, and the hidden verb that its script calls.
void add_completion_verbs(CLI::App& root, Verbs& verbs, const Program& program, Known known);

}  // namespace sortie::cli
