#include "common/cli/tree.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <sstream>

namespace sortie::cli {
namespace {

constexpr const char* kGlobalGroup = "Everywhere";

class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(const Verbs& verbs) : verbs_(verbs) { column_width(34); }

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    if (mode == CLI::AppFormatMode::Sub) return CLI::Formatter::make_help(app, name, mode);
    const Footer footer = footer_of(*app);
    const auto verb = std::ranges::find(verbs_, app, &Verb::app);
    std::string out;
    if (!footer.examples.empty()) out += fmt::format("Examples:\n{}\n", footer.examples);
    out += fmt::format("{}\n\nUsage: {} {}\n", app->get_description(), full_name(*app),
                       usage_of(*app, verb != verbs_.end() && verb->takes_program));
    out += make_positionals(app) + own_groups(*app) + make_subcommands(app, mode);
    out += make_group(kGlobalGroup, false, in_group(*app, kGlobalGroup));
    if (!footer.rest.empty()) out += "\n" + footer.rest;
    return out;
  }

 private:
  std::string make_option_desc(const CLI::Option* option) const override {
    return description_of(*option);
  }
  static std::vector<const CLI::Option*> in_group(const CLI::App& app, const std::string& group) {
    return app.get_options([&group](const CLI::Option* option) {
      return option->get_group() == group && !option->get_positional();
    });
  }
  /// The options of the verb alone, which come before those that all verbs have.
  std::string own_groups(const CLI::App& app) const {
    std::string out;
    for (const std::string& group : app.get_groups())
      if (!group.empty() && group != kGlobalGroup && !in_group(app, group).empty())
        out += make_group(group, false, in_group(app, group));
    return out;
  }

  const Verbs& verbs_;
};

template <class Visit>
void for_each_app(CLI::App& app, Visit visit) {
  visit(app);
  for (CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; }))
    for_each_app(*sub, visit);
}

}  // namespace

void set_help(CLI::App& root, const Verbs& verbs) {
  const auto formatter = std::make_shared<HelpFormatter>(verbs);
  for_each_app(root, [&](CLI::App& app) {
    app.formatter(formatter);
    if (CLI::Option* help = app.get_help_ptr()) help->description("This text")->group(kGlobalGroup);
  });
}

void add_global_flags(CLI::App& root, const char* verbose, bool colors) {
  for_each_app(root, [verbose, colors](CLI::App& app) {
    const auto flag = [&app](const char* names, const char* const description) {
      app.add_flag(names, description)->group(kGlobalGroup);
    };
    flag("-q,--quiet", "Print only errors, output of ranks and results");
    flag("-v,--verbose", verbose);
    if (colors) flag("--no-color", "No colours (as NO_COLOR=1; CLICOLOR_FORCE=1 is the opposite)");
  });
}

GlobalFlags global_flags(const CLI::App& verb) {
  GlobalFlags flags;
  const auto given = [](const CLI::App& app, const char* name) {
    const CLI::Option* option = app.get_option_no_throw(name);
    return option != nullptr && option->count() > 0;
  };
  for (const CLI::App* app = &verb; app != nullptr; app = app->get_parent()) {
    flags.quiet |= given(*app, "--quiet");
    flags.verbose |= given(*app, "--verbose");
    flags.no_color |= given(*app, "--no-color");
  }
  return flags;
}

std::vector<const CLI::App*> subverbs(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); });
}

const CLI::App* subverb(const CLI::App& app, std::string_view name) {
  for (const CLI::App* sub : subverbs(app))
    if (sub->get_name() == name) return sub;
  return nullptr;
}

const CLI::App* named_verb(const CLI::App& root, const std::vector<std::string>& words) {
  const CLI::App* level = &root;
  for (const std::string& word : words)
    if (const CLI::App* sub = subverb(*level, word)) level = sub;
  return level;
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name()
                                     : full_name(*app.get_parent()) + " " + app.get_name();
}

std::string place_of(const CLI::App& app) {
  std::string name = full_name(app);
  if (const std::size_t blank = name.find(' '); blank != name.npos) name.insert(blank, ":");
  return name;
}

std::string usage_of(const CLI::App& app, bool takes_program) {
  std::string out = "[OPTIONS]";
  for (const CLI::Option* option : positionals(app)) {
    std::string name = option->get_name(true);
    if (option->get_items_expected_max() > 1) name += "...";
    out += option->get_required() ? " " + name : fmt::format(" [{}]", name);
  }
  if (!subverbs(app).empty()) out += " VERB";
  if (takes_program) out += " [-- PROGRAM ARGS...]";
  return out;
}

Footer footer_of(const CLI::App& app) {
  constexpr std::string_view kHeading = "Examples:\n";
  std::string text = app.get_footer();
  if (text.empty() && app.get_parent() != nullptr) {  // the parent's examples that are about it
    const std::string start = fmt::format("  {}", full_name(app));
    std::istringstream lines(footer_of(*app.get_parent()).examples);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with(start))
        text += (text.empty() ? std::string(kHeading) : "") + line + "\n";
  }
  if (!text.starts_with(kHeading)) return {"", text};
  const std::size_t end = text.find("\n\n");
  if (end == text.npos) return {text.substr(kHeading.size()), ""};
  return {text.substr(kHeading.size(), end + 1 - kHeading.size()), text.substr(end + 2)};
}

std::vector<const CLI::Option*> named_options(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) {
    return option->nonpositional() && !option->get_group().empty();
  });
}

std::vector<const CLI::Option*> positionals(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return option->get_positional(); });
}

std::string description_of(const CLI::Option& option) {
  std::string out = option.get_description();
  if (!option.get_positional() || !option.nonpositional()) return out;
  std::string names;
  for (const std::string& name : spellings(option)) names += (names.empty() ? "" : ", ") + name;
  return fmt::format("{}; also as {}", out, names);
}

std::vector<std::string> spellings(const CLI::Option& option) {
  std::vector<std::string> out;
  for (const std::string& name : option.get_snames()) out.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) out.push_back("--" + name);
  return out;
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

std::vector<std::string> choices(const CLI::Option& option) {
  // CLI::IsMember describes itself as "{a,b}", CLI::CheckedTransformer as "{a->0,b->1}".
  const std::string type = option.get_type_name();
  const std::size_t open = type.find('{');
  const std::size_t close = type.find('}', open == type.npos ? 0 : open);
  std::vector<std::string> out;
  if (open == type.npos || close == type.npos) return out;
  std::string words = type.substr(open + 1, close - open - 1);
  for (std::size_t comma = 0; comma != words.npos;) {
    comma = words.find(',');
    out.push_back(words.substr(0, std::min(comma, words.find("->"))));
    if (comma != words.npos) words.erase(0, comma + 1);
  }
  return out;
}

std::string value_name(const CLI::Option& option) {
  if (!takes_value(option)) return "";
  std::string out;
  for (const std::string& word : choices(option)) out += (out.empty() ? "" : "|") + word;
  if (!out.empty()) return out;
  const std::string type = option.get_type_name();
  const std::string name = type.substr(0, type.find(':'));
  return name.empty() ? "VALUE" : name;
}

}  // namespace sortie::cli
