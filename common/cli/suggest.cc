// Suggestions: the word that was probably meant, and the command that may come next.
#include <fmt/core.h>

#include <algorithm>

#include "common/base/command_name.h"
#include "common/cli/tree.h"
#include "common/config/text.h"

namespace sortie::cli {
namespace {

constexpr std::size_t kMaxNextSteps = 3;
constexpr std::size_t kMaxListedVerbs = 8;

std::string meant(std::string_view word, const std::vector<std::string>& known) {
  const std::string_view near = config::nearest(word, {known.begin(), known.end()});
  return near.empty() ? "" : fmt::format("did you mean `{}`?", near);
}

bool has_spelling(const CLI::Option& option, std::string_view name) {
  const auto names = spellings(option);
  return std::ranges::find(names, name) != names.end();
}

const CLI::Option* option_named(const CLI::App& app, std::string_view name) {
  for (const CLI::Option* option : named_options(app))
    if (has_spelling(*option, name)) return option;
  return nullptr;
}

}  // namespace

std::string see_help(const CLI::App& app) {
  const std::string name = full_name(app);
  return fmt::format("see `{}{} --help`", command_line({}),
                     name.substr(std::min(name.find(' '), name.size())));
}

std::string did_you_mean(const CLI::App& root, const std::vector<std::string>& arguments) {
  const CLI::App* level = &root;
  std::size_t place = 0;  // of the next positional
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument.starts_with("-") && argument.size() > 1) {
      const std::string name = argument.substr(0, argument.find('='));
      const CLI::Option* option = option_named(*level, name);
      if (option == nullptr || !takes_value(*option)) continue;
      const bool inside = argument.size() > name.size();
      const std::string value = inside                     ? argument.substr(name.size() + 1)
                                : i + 1 < arguments.size() ? arguments[++i]
                                                           : "";
      const auto words = choices(*option);
      if (!words.empty() && std::ranges::find(words, value) == words.end())
        return meant(value, words);
      continue;
    }
    if (const CLI::App* sub = subverb(*level, argument)) {
      level = sub;
      place = 0;
      continue;
    }
    const auto places = positionals(*level);
    if (place < places.size()) {
      const auto words = choices(*places[place]);
      if (places[place]->get_items_expected_max() == 1) ++place;
      if (!words.empty() && std::ranges::find(words, argument) == words.end())
        return meant(argument, words);
      continue;
    }
    std::vector<std::string> verbs;
    for (const CLI::App* sub : subverbs(*level)) verbs.push_back(sub->get_name());
    return meant(argument, verbs);
  }
  return "";
}

std::string no_such_verb(const CLI::App& level, const std::string& word,
                         const std::string& advice) {
  const std::string what = word.empty() ? "a verb is missing" : fmt::format("no verb `{}`", word);
  const auto verbs = subverbs(level);
  std::string remedy = advice;
  if (remedy.empty() && verbs.size() <= kMaxListedVerbs) {
    for (std::size_t i = 0; i < verbs.size(); ++i)
      remedy += fmt::format("{}{}",
                            i == 0                  ? "use "
                            : i + 1 == verbs.size() ? " or "
                                                    : ", ",
                            verbs[i]->get_name());
  } else if (remedy.empty()) {
    remedy = see_help(level);
  }
  return fmt::format("{}: {}; {}", place_of(level), what, remedy);
}

bool names_a_verb(const CLI::App& root, const std::vector<std::string>& words) {
  const CLI::App* level = &root;
  for (const std::string& word : words) {
    const CLI::App* sub = subverb(*level, word);
    // If a verb has verbs below it, the next word must be one of them; otherwise it is an argument.
    if (sub == nullptr) return level != &root && subverbs(*level).empty();
    level = sub;
  }
  return level != &root;
}

std::string next_steps(const CLI::App& root,
                       const std::vector<std::vector<std::string>>& commands) {
  std::string out;
  std::size_t count = 0;
  for (const std::vector<std::string>& words : commands)
    if (count < kMaxNextSteps && names_a_verb(root, words)) {
      out += fmt::format("{}\n  {}", out.empty() ? "next:" : "", command_line(words));
      ++count;
    }
  return out;
}

}  // namespace sortie::cli
