// Reads the tree of verbs and options that CLI11 holds. Help, man pages, completions and
// suggestions are all made from it, so that a verb that exists is in all of them.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/cli/verb.h"

namespace sortie::cli {

/// Makes all help texts begin with examples; description, usage, options and the rest of the footer
/// follow. `verbs` must outlive `root`.
void set_help(CLI::App& root, const Verbs& verbs);

/// Values of the flags that every verb has.
struct GlobalFlags {
  bool quiet = false;     // -q, --quiet: errors only
  bool verbose = false;   // -v, --verbose: diagnostics
  bool no_color = false;  // --no-color
};
/// Adds these flags to `root` and every verb; --no-color only if `colors` is true.
/// `verbose`: what --verbose does, for the help.
void add_global_flags(CLI::App& root, const char* verbose, bool colors);
/// The flags that were given before and after the verb.
GlobalFlags global_flags(const CLI::App& verb);

/// The visible verbs below `app`, in order.
std::vector<const CLI::App*> subverbs(const CLI::App& app);
/// The visible verb below `app` with this name; nullptr if there is none.
const CLI::App* subverb(const CLI::App& app, std::string_view name);
/// "sortie config show".
std::string full_name(const CLI::App& app);
/// "sortie: config show", the prefix of a message about it.
std::string place_of(const CLI::App& app);
/// Usage without the name: "[OPTIONS] [config] [-- PROGRAM ARGS...]".
std::string usage_of(const CLI::App& app, bool takes_program);

/// The "Examples:" paragraph of a footer without that heading, and the rest of the footer. A verb
/// without a footer has those examples of its parent that are about it.
struct Footer {
  std::string examples, rest;
};
Footer footer_of(const CLI::App& app);

/// Visible options of a verb that have a name, and its positional options. An option may be both.
std::vector<const CLI::Option*> named_options(const CLI::App& app);
std::vector<const CLI::Option*> positionals(const CLI::App& app);
/// Description of an option in help. An option that is both named and positional is described once,
/// as a positional, with its names.
std::string description_of(const CLI::Option& option);
/// All names of an option: "-q", "--quiet".
std::vector<std::string> spellings(const CLI::Option& option);
bool takes_value(const CLI::Option& option);
/// Placeholder for the value: "TEXT" or "a|b"; "" if the option takes none.
std::string value_name(const CLI::Option& option);
/// The words that the value must be one of; empty if it may be anything.
std::vector<std::string> choices(const CLI::Option& option);

/// The verb that the words name. For use before parsing, which may already run the verb.
const CLI::App* named_verb(const CLI::App& root, const std::vector<std::string>& words);

/// "see `sortie run --help`", with the name under which this program was found.
std::string see_help(const CLI::App& app);

/// "did you mean `run`?" for a verb or a value that does not exist; "" if no known word is near.
std::string did_you_mean(const CLI::App& root, const std::vector<std::string>& arguments);

/// "sortie: nodes: no verb `list`; use ls, cordon or test". `advice` is the result of
/// did_you_mean(). An empty `word` means that no verb was given.
std::string no_such_verb(const CLI::App& level, const std::string& word, const std::string& advice);

/// True if `words`, which follow "sortie", begin with a verb that exists. Only such commands are
/// proposed.
bool names_a_verb(const CLI::App& root, const std::vector<std::string>& words);
/// "next:\n  sortie logs RUN" for those of `commands` that name a verb, three at most; "" for
/// none. Each command is the words that follow "sortie"; they are quoted for a shell.
std::string next_steps(const CLI::App& root, const std::vector<std::vector<std::string>>& commands);

}  // namespace sortie::cli
