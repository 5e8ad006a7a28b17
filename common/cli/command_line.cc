#include "common/cli/command_line.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "common/base/check.h"
#include "common/base/command_name.h"
#include "common/base/shell_text.h"
#include "common/cli/parse_error.h"
#include "common/cli/tree.h"

namespace sortie::cli {
namespace {

bool has_option(const CLI::App& app, const char* name) {
  return app.get_option_no_throw(name) != nullptr;
}

/// Says what is wrong with a value of `app` or its parents that no option can have; "" if there is
/// none.
/// - It is empty, as in `--hosts "$HOSTS"` if that variable is not set. What the user meant is
///   unknown, and to treat the option as absent would run on this machine. Options that take any
///   text, an empty one too, have the type name kTextOrNone.
/// - It is NaN, which passes every check of a range, as no comparison with it is true.
std::string unusable_value(const CLI::App* app) {
  for (; app != nullptr; app = app->get_parent())
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_items_expected_max() == 0) continue;
      for (const std::string& value : option->results()) {
        if (value.empty() && option->get_type_name() != kTextOrNone)
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
                          "`{} --shell -- {}`?",
                          root.get_name(), shell_word(program.front()), command_line(arguments),
                          shell_word(program.front())));
}

}  // namespace

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
    return fail(ErrorCode::usage,
                parse_message(root, verbs, given, has_program ? &program : nullptr, error));
  }
  const auto verb = std::ranges::find_if(verbs, [](const Verb& v) { return v.app->parsed(); });
  SORTIE_CHECK(verb != verbs.end());
  if (has_program && program.empty())
    return usage("nothing follows --; a program is expected there");
  SORTIE_TRY(check_program(root, *verb, program, given));
  return Choice{&*verb, 0};
}

}  // namespace sortie::cli
