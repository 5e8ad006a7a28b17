#include "common/cli/complete.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "common/base/exit_code.h"
#include "common/cli/tree.h"
#include "common/config/architectures.h"
#include "common/config/fields.h"
#include "common/config/hostgroups.h"

namespace sortie::cli {
namespace {

void add(Completion& out, std::string_view partial, std::string word,
         std::string_view description) {
  if (word.starts_with(partial)) out.words.emplace_back(std::move(word), std::string(description));
}

/// Values for --set key=: the words that the field table allows.
void add_values(Completion& out, std::string_view partial, std::string_view before,
                const config::Field& field) {
  const std::string start = fmt::format("{}{}=", before, field.key);
  if (const auto* choices = std::get_if<config::Choices>(&field.rule))
    for (const std::string_view word : choices->words)
      add(out, partial, fmt::format("{}{}", start, word), "");
  if (config::kind_of(field) == config::Kind::boolean)
    for (const char* word : {"true", "false"}) add(out, partial, start + word, "");
}

void add_config_keys(Completion& out, std::string_view partial, std::string_view before) {
  const std::string_view typed = partial.substr(before.size());
  if (const std::size_t equals = typed.find('='); equals != typed.npos) {
    if (const config::Field* field = config::find_field(typed.substr(0, equals)))
      add_values(out, partial, before, *field);
    return;
  }
  for (const config::Field& field : config::fields())
    add(out, partial, fmt::format("{}{}=", before, field.key), field.help);
  out.no_space = true;
}

/// Value of an option that was given before the cursor; "" if it was not.
std::string given_value(const std::vector<std::string>& words, const std::string& flag) {
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i].starts_with(flag + "=")) return words[i].substr(flag.size() + 1);
    if (words[i] == flag && i + 2 < words.size()) return words[i + 1];
  }
  return "";
}

/// Completes the last element of a host expression to a group: "gpu01,!@ne" to "gpu01,!@new".
void add_groups(Completion& out, std::string_view partial, std::string_view before,
                const std::vector<std::string>& words) {
  const std::string_view typed = partial.substr(before.size());
  const std::size_t comma = typed.rfind(',');
  const std::size_t begin = comma == typed.npos ? 0 : comma + 1;
  std::string_view element = typed.substr(begin);
  const std::string_view exclusion = element.starts_with('!') ? "!" : "";
  const auto groups = config::HostGroups::load(given_value(words, "--groups"));
  if (!groups) return;
  for (const std::string& name : groups->names())
    add(out, partial, fmt::format("{}{}{}@{}", before, typed.substr(0, begin), exclusion, name),
        "");
  out.no_space = true;  // a comma may follow
}

/// Candidates for the value of an option or a positional. `before` is "--flag=" if the flag and its
/// value are one word.
void add_option_values(Completion& out, const CLI::Option& option,
                       const std::vector<std::string>& words_before, std::string_view before,
                       const CLI::App& root, const Known& known) {
  const std::string_view partial = words_before.back();
  std::string name = option.get_name(!option.nonpositional());
  name.erase(0, name.find_first_not_of('-'));
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (name == "set") return add_config_keys(out, partial, before);
  if (name == "hosts" || name == "exclude" || name == "host")
    return add_groups(out, partial, before, words_before);
  if (name == "preset") {
    for (const config::Preset& preset : config::presets())
      add(out, partial, fmt::format("{}{}", before, preset.name), preset.model.architecture);
    return;
  }
  const auto words = choices(option);
  for (const std::string& word : words) add(out, partial, fmt::format("{}{}", before, word), "");
  if (!words.empty()) return;
  if (name == "run") {
    add(out, partial, fmt::format("{}last", before), "The latest run");
    if (!known.runs) return;
    for (const std::string& run : known.runs())
      add(out, partial, fmt::format("{}{}", before, run), "");
  } else if (name == "faults") {
    const std::string_view typed = partial.substr(before.size());
    const std::size_t comma = typed.rfind(',');
    const std::string_view done = typed.substr(0, comma == typed.npos ? 0 : comma + 1);
    for (const std::string& fault : known.faults)
      add(out, partial, fmt::format("{}{}{}", before, done, fault), "");
  } else if (name == "verb") {
    for (const CLI::App* sub : subverbs(root))
      add(out, partial, fmt::format("{}{}", before, sub->get_name()), sub->get_description());
  } else if (name == "code") {
    for (const ErrorClass& entry : error_classes())
      add(out, partial, fmt::format("{}{}", before, error_code_name(entry.code)), entry.meaning);
    for (const ExitCode& entry : exit_codes())
      add(out, partial, fmt::format("{}{}", before, entry.code), entry.meaning);
  } else {
    out.files = true;
  }
}

}  // namespace

Completion complete(const CLI::App& root, const std::vector<std::string>& words,
                    const Known& known) {
  Completion out;
  if (words.empty()) return out;
  const std::string& partial = words.back();
  const CLI::App* level = &root;
  const CLI::Option* pending = nullptr;  // waits for its value
  std::size_t place = 0;                 // of the next positional
  const auto option_named = [&](std::string_view name) -> const CLI::Option* {
    for (const CLI::Option* option : named_options(*level))
      for (const std::string& spelling : spellings(*option))
        if (spelling == name) return option;
    return nullptr;
  };
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (std::exchange(pending, nullptr) != nullptr) continue;
    if (word == "--") {  // a program and its arguments
      out.files = true;
      return out;
    }
    if (word.starts_with("-")) {
      const CLI::Option* option = option_named(word.substr(0, word.find('=')));
      if (option && takes_value(*option) && !word.contains('=')) pending = option;
      continue;
    }
    if (const CLI::App* sub = subverb(*level, word)) {
      level = sub;
      place = 0;
    } else {
      const auto places = positionals(*level);
      if (place < places.size() && places[place]->get_items_expected_max() == 1) ++place;
    }
  }
  if (pending != nullptr) {
    add_option_values(out, *pending, words, "", root, known);
    return out;
  }
  if (partial.starts_with("-")) {
    const std::size_t equals = partial.find('=');
    if (equals != partial.npos) {
      const CLI::Option* option = option_named(partial.substr(0, equals));
      if (option && takes_value(*option))
        add_option_values(out, *option, words, partial.substr(0, equals + 1), root, known);
      return out;
    }
    for (const CLI::Option* option : named_options(*level))
      for (const std::string& spelling : spellings(*option))
        if (spelling.starts_with("--")) add(out, partial, spelling, option->get_description());
    return out;
  }
  for (const CLI::App* sub : subverbs(*level))
    add(out, partial, sub->get_name(), sub->get_description());
  const auto places = positionals(*level);
  if (place < places.size()) add_option_values(out, *places[place], words, "", root, known);
  return out;
}

std::string completion_lines(const Completion& completion) {
  std::string out;
  for (const auto& [word, description] : completion.words)
    out += fmt::format("{}\t{}\n", word, description);
  return out + (completion.files ? ":files\n" : completion.no_space ? ":nospace\n" : ":words\n");
}

}  // namespace sortie::cli
