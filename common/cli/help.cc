// `help [VERB...]`.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "common/cli/common_verbs.h"
#include "common/cli/print.h"
#include "common/cli/tree.h"

namespace sortie::cli {
namespace {

int print_help(const CLI::App& root, const std::vector<std::string>& words) {
  const CLI::App* level = &root;
  for (const std::string& word : words) {
    const CLI::App* next = subverb(*level, word);
    if (next == nullptr) {
      const std::string near = did_you_mean(root, words);
      return print_error({ErrorCode::usage, no_such_verb(*level, word, near)});
    }
    level = next;
  }
  // App::help() would print the help of the verb that was parsed, which is `help`.
  return print_text(root.get_name(),
                    level->get_formatter()->make_help(level, "", CLI::AppFormatMode::Normal));
}

}  // namespace

void add_help_verb(CLI::App& root, Verbs& verbs) {
  const auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* help = root.add_subcommand("help", "Show the help of a verb");
  const std::string name = root.get_name();
  const std::string example = subverbs(root).empty() ? "" : subverbs(root).front()->get_name();
  help->footer(
      fmt::format("Examples:\n  {0} help        list the commands\n"
                  "  {0} help {1}    the same as `{0} {1} --help`\n",
                  name, example));
  help->add_option("verb", *words, "Verb, and a verb below it; none = the program itself");
  verbs.push_back({help, [words, &root] { return print_help(root, *words); }});
}

}  // namespace sortie::cli
