// The tree of verbs and options that CLI11 holds, read back. Help, man pages, completions and
// suggestions all come from it: a verb that exists is in all of them.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/cli/verb.h"

namespace sortie::cli {

/// Examples first, then usage, options and what else the footer says. `verbs` must outlive `root`.
void set_help(CLI::App& root, const Verbs& verbs);

/// What the user wants to see of the program itself.
struct GlobalFlags {
  bool quiet = false;     // -q, --quiet: errors only
  bool verbose = false;   // -v, --verbose: diagnostics
  bool no_color = false;  // --no-color
};
/// Adds them to every verb; --no-color only to programs that use colours.
void add_global_flags(CLI::App& root, bool colors);
/// What was given before and after the verb.
GlobalFlags global_flags(const CLI::App& verb);

/// The visible verbs below `app`, in order.
std::vector<const CLI::App*> subverbs(const CLI::App& app);
/// That of them; null = there is none of that name.
const CLI::App* subverb(const CLI::App& app, std::string_view name);
/// "sortie config show".
std::string full_name(const CLI::App& app);
/// "sortie: config show", before a message about it.
std::string place_of(const CLI::App& app);
/// "[OPTIONS] [config] [-- PROGRAM ARGS...]", without the name.
std::string usage_of(const CLI::App& app, bool takes_program);

/// A footer's "Examples:" paragraph without that line, and what follows it.
struct Footer {
  std::string examples, rest;
};
Footer footer_of(const CLI::App& app);

/// Options of a verb: those with a name, and those known by their place.
std::vector<const CLI::Option*> named_options(const CLI::App& app);
std::vector<const CLI::Option*> positionals(const CLI::App& app);
/// What help says about it. An option that is also known by its place is described there alone,
/// with its names.
std::string description_of(const CLI::Option& option);
/// "-q,--quiet" with all its spellings.
std::vector<std::string> spellings(const CLI::Option& option);
bool takes_value(const CLI::Option& option);
/// "TEXT", "a|b" or "" for what the value is.
std::string value_name(const CLI::Option& option);
/// Words that the value is one of; empty when it may be anything.
std::vector<std::string> choices(const CLI::Option& option);

/// "did you mean `run`?" for words that do not parse; "" when nothing is near.
std::string did_you_mean(const CLI::App& root, const std::vector<std::string>& arguments);

/// "sortie: nodes: no verb `list`; use ls, cordon or test". `advice`: of did_you_mean. An empty
/// `word`: none was given.
std::string no_such_verb(const CLI::App& level, const std::string& word, const std::string& advice);

/// True when the words after "sortie" begin with a verb that exists: only such lines are proposed.
bool names_a_verb(const CLI::App& root, std::string_view words);
/// "next:\n  sortie logs RUN" of those `lines` that name a verb, three at most; "" for none.
std::string next_steps(const CLI::App& root, const std::vector<std::string>& lines);

}  // namespace sortie::cli
