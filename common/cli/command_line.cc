#include "common/cli/command_line.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "common/base/check.h"
#include "common/base/shell_text.h"
#include "common/cli/tree.h"

namespace sortie::cli {
namespace {

bool has_option(const CLI::App& app, const char* name) {
  return app.get_option_no_throw(name) != nullptr;
}

/// The verb that the words name. Called before parsing, which may already run the verb.
const CLI::App* named_verb(const CLI::App& root, const std::vector<std::string>& words) {
  const CLI::App* level = &root;
  for (const std::string& word : words)
    if (const CLI::App* sub = subverb(*level, word)) level = sub;
  return level;
}

/// The first word that should name a verb but does not, "" if a verb is missing, and the app whose
/// verb it should be. The app is nullptr if all verbs exist.
std::pair<const CLI::App*, std::string> unknown_verb(const CLI::App& root,
                                                     const std::vector<std::string>& words) {
  const CLI::App* level = &root;
  for (const std::string& word : words) {
    if (subverbs(*level).empty()) break;
    if (word.starts_with("-")) continue;
    const CLI::App* verb = subverb(*level, word);
    if (verb == nullptr) return {level, word};
    level = verb;
  }
  return {subverbs(*level).empty() ? nullptr : level, ""};
}

/// Rewords CLI11's "hosts is required" as "hosts is missing", and "Value -1 not in range 0.000000
/// to 1797693134...", whose limit has 309 digits, as "Value -1 is less than 0".
std::string in_words(std::string what) {
  constexpr std::string_view kRequired = " is required";
  if (what.ends_with(kRequired))
    what.replace(what.size() - kRequired.size(), kRequired.size(), " is missing");
  constexpr std::string_view kUnlimited = " not in range 0.000000 to 179769";
  if (const std::size_t at = what.find(kUnlimited); at != what.npos) {
    constexpr std::string_view kValue = "Value ";
    const std::size_t begin = what.rfind(kValue, at);
    const std::string value = begin == what.npos ? "" : what.substr(begin + kValue.size());
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    what.replace(at, what.npos,
                 end != value.c_str() + value.find(' ') ? " is not a number"
                 : number < 0                           ? " is less than 0"
                                                        : " is not above 0");
  }
  return what;
}

/// Says what is wrong with a value of `app` or its parents that no option can have; "" if there is
/// none.
/// - It is empty, as in `--hosts "$HOSTS"` if that variable is not set. What the user meant is
///   unknown, and to treat the option as absent would run on this machine.
/// - It is NaN, which lies in every range, as no comparison with it is true.
std::string unusable_value(const CLI::App* app) {
  for (; app != nullptr; app = app->get_parent())
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_items_expected_max() == 0) continue;
      for (const std::string& value : option->results()) {
        if (value.empty())
          return fmt::format("{}: the value is empty; give it one, or leave it out",
                             option->get_name());
        if (option->get_type_name().starts_with("FLOAT") &&
            std::isnan(std::strtod(value.c_str(), nullptr)))
          return fmt::format("{}: {} is not a number", option->get_name(), value);
      }
    }
  return "";
}

/// An error of parsing whose message is complete.
struct UnusableValue : CLI::ParseError {
  explicit UnusableValue(std::string message)
      : ParseError("UnusableValue", std::move(message), CLI::ExitCodes::ValidationError) {}
};

/// Refuses a program of one word that is a shell command line. As the name of a program it would
/// fail on every host with "no such program".
Result<> check_program(const CLI::App& root, const Verb& verb, const Program& program,
                       const std::vector<std::string>& arguments) {
  if (program.size() != 1 || !has_option(*verb.app, "--shell") || verb.app->count("--shell") > 0 ||
      !looks_like_shell_line(program.front()))
    return {};
  return fail(ErrorCode::usage,
              fmt::format("{}: {} is a line for a shell, not the name of a program; did you mean "
                          "`{} {} --shell -- {}`?",
                          root.get_name(), shell_word(program.front()), root.get_name(),
                          shell_text(arguments), shell_word(program.front())));
}

}  // namespace

bool looks_like_shell_line(std::string_view word) {
  return word.find_first_of(" \t\n|&;<>$`") != word.npos;
}

void refuse_unusable_values(const CLI::App& root) {
  const CLI::App* verb = &root;
  while (!verb->get_subcommands().empty()) verb = verb->get_subcommands().front();
  if (std::string message = unusable_value(verb); !message.empty())
    throw UnusableValue(std::move(message));
}

Result<Choice> choose_verb(CLI::App& root, const Verbs& verbs, Program& program,
                           std::vector<std::string> arguments) {
  // Cut off the program first, so that none of its flags is taken for one of Sortie's.
  const auto dashes = std::ranges::find(arguments, "--");
  const bool has_program = dashes != arguments.end();
  if (has_program) program.assign(dashes + 1, arguments.end());
  arguments.erase(dashes, arguments.end());
  const std::vector<std::string> given = arguments;
  std::ranges::reverse(arguments);  // CLI11 takes the last element first
  const auto usage = [&](std::string_view message) {
    return fail(ErrorCode::usage, fmt::format("{}: {}", root.get_name(), message));
  };
  const auto named = std::ranges::find(verbs, named_verb(root, given), &Verb::app);
  if (has_program && named != verbs.end() && !named->takes_program)
    return usage(fmt::format("`{}` accepts no program after --", named->app->get_name()));
  try {
    root.parse(arguments);
    refuse_unusable_values(root);
  } catch (const UnusableValue& error) {
    return usage(error.what());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return Choice{nullptr, root.exit(error)};
    // `--hosts="$HOSTS"` if that variable is not set.
    for (const std::string& word : given)
      if (word.starts_with("--") && word.find('=') == word.size() - 1)
        return usage(fmt::format("{}: the value is empty; give it one, or leave it out",
                                 word.substr(0, word.size() - 1)));
    const std::string advice = did_you_mean(root, given);
    // A short flag after a program's name belongs to the program, even if it resembles one of ours.
    const bool option_meant = advice.contains("`--");
    const std::string form =
        has_program || option_meant ? "" : with_program_behind_dashes(root, verbs, given);
    if (!form.empty())
      return usage(fmt::format("a program comes after --; did you mean `{}`?", form));
    const auto [level, word] = unknown_verb(root, given);
    if (level != nullptr && std::string_view(error.what()) == "A subcommand is required")
      return fail(ErrorCode::usage, no_such_verb(*level, word, advice));
    const CLI::App& verb = *named_verb(root, given);
    const std::string remedy =
        advice.empty() ? fmt::format("see `{} --help`", full_name(verb)) : advice;
    return fail(ErrorCode::usage,
                fmt::format("{}: {}; {}", place_of(verb), in_words(error.what()), remedy));
  }
  const auto verb = std::ranges::find_if(verbs, [](const Verb& v) { return v.app->parsed(); });
  SORTIE_CHECK(verb != verbs.end());
  if (has_program && program.empty())
    return usage("nothing follows --; a program is expected there");
  SORTIE_TRY(check_program(root, *verb, program, given));
  return Choice{&*verb, 0};
}

}  // namespace sortie::cli
