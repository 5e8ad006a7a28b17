#include "common/cli/parse_error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>

#include "common/cli/tree.h"

namespace sortie::cli {
namespace {

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

/// "LOCAL... REMOTE", the description of an option that several things share; else "".
std::string names_of_values(const CLI::App& verb, const std::string& name) {
  const CLI::Option* option = verb.get_option_no_throw(name);
  return option != nullptr && option->get_description().contains("... ") ? option->get_description()
                                                                         : "";
}

/// "--hosts: At Most 1 required but received 2" and the like: too many or too few values.
std::string number_of_values(const CLI::App& verb, const std::string& what) {
  const std::string name = what.substr(0, what.find(':'));
  const std::string count = what.substr(what.rfind(' ') + 1);
  if (what.ends_with(" missing")) return fmt::format("{}: a value is missing", name);
  if (constexpr std::string_view kLeast = ": At least "; what.contains(kLeast)) {
    const std::string names = names_of_values(verb, name);
    if (!names.empty()) return fmt::format("{} is missing", names.substr(names.rfind(' ') + 1));
    const std::size_t least = name.size() + kLeast.size();
    return fmt::format("{}: {} are needed, {} given", name,
                       what.substr(least, what.find(' ', least) - least), count);
  }
  if (!what.contains(": At Most 1 ")) return what;
  const bool is_list = name == "--hosts" || name == "--exclude";
  return fmt::format("{}: given {}; {}", name, count == "2" ? "twice" : count + " times",
                     is_list ? fmt::format("write one list, as in {} h01,h02", name)
                             : std::string("give it once"));
}

/// "Value -1 not in range 0.000000 to 1797693134...", whose limit has 309 digits, and "tcsh not in
/// {bash,zsh}", which is "Check tcsh value in {bash->0,zsh->1} OR {0,1} FAILED" for others.
std::string unsuitable_value(const CLI::App& verb, std::string what) {
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
    return what;
  }
  const std::string name = what.substr(0, what.find(": "));
  const CLI::Option* option = verb.get_option_no_throw(name);
  const std::size_t end = std::min(what.find(" not in {"), what.find(" value in {"));
  if (option == nullptr || end == what.npos) return what;
  std::string value = what.substr(name.size() + 2, end - name.size() - 2);
  if (constexpr std::string_view kCheck = "Check "; value.starts_with(kCheck))
    value.erase(0, kCheck.size());
  return fmt::format("{}: {} is none of {}", name, value, fmt::join(choices(*option), ", "));
}

std::string in_words(const CLI::App& verb, const CLI::ParseError& error) {
  std::string what = error.what();
  const auto replaced = [&what](std::string_view part, std::string_view by, std::string_view end) {
    const std::size_t at = what.find(part);
    return at == what.npos ? what
                           : fmt::format("{}{}{}{}", what.substr(0, at), by,
                                         what.substr(at + part.size()), end);
  };
  switch (static_cast<CLI::ExitCodes>(error.get_exit_code())) {
    case CLI::ExitCodes::ExtrasError: {
      // CLI11's own text has them in reverse order.
      const std::vector<std::string> words = verb.remaining();
      if (words.empty()) return what;
      return fmt::format("`{}` {} not expected", fmt::join(words, " "),
                         words.size() == 1 ? "is" : "are");
    }
    case CLI::ExitCodes::ArgumentMismatch:
      return number_of_values(verb, what);
    case CLI::ExitCodes::ValidationError:
      return unsuitable_value(verb, what);
    case CLI::ExitCodes::RequiredError: {
      const std::string names = names_of_values(verb, what.substr(0, what.find(' ')));
      return names.empty() ? replaced(" is required", " is missing", "") : names + " are missing";
    }
    case CLI::ExitCodes::ExcludesError:
      return replaced(" excludes ", " and ", " exclude each other");
    default:
      return what;
  }
}

}  // namespace

std::string parse_message(const CLI::App& root, const Verbs& verbs,
                          const std::vector<std::string>& arguments, const Program* program,
                          const CLI::ParseError& error) {
  // `--hosts="$HOSTS"` if that variable is not set.
  for (const std::string& word : arguments)
    if (word.starts_with("--") && word.find('=') == word.size() - 1)
      return fmt::format("{}: {}: the value is empty; give it one, or leave it out",
                         root.get_name(), word.substr(0, word.size() - 1));
  const CLI::App* verb = named_verb(root, arguments);
  const Slip slip = find_slip(root, verbs, arguments, program);
  // An unknown option explains each other error: CLI11 does not know that it has a value.
  if (!slip.option.empty())
    return fmt::format("{}: no option `{}`; {}", place_of(*verb), slip.option,
                       !slip.form.empty()   ? fmt::format("did you mean `{}`?", slip.form)
                       : !slip.ours.empty() ? fmt::format("did you mean `{}`?", slip.ours)
                                            : see_help(*verb));
  if (!slip.form.empty())
    return fmt::format("{}: {}; did you mean `{}`?", root.get_name(),
                       program == nullptr && slip.form.contains(" -- ")
                           ? "a program comes after --"
                           : "hosts are given with --hosts",
                       slip.form);
  const std::string advice = did_you_mean(root, arguments);
  const auto [level, word] = unknown_verb(root, arguments);
  if (level != nullptr && std::string_view(error.what()) == "A subcommand is required")
    return no_such_verb(*level, word, advice);
  const std::string what = in_words(*verb, error);
  const std::string remedy = advice.empty() ? see_help(*verb) : advice;
  return fmt::format("{}: {}{}", place_of(*verb), what, what.contains(';') ? "" : "; " + remedy);
}

}  // namespace sortie::cli
