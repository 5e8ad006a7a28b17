// Recognizes command lines in the style of other tools, `sortie exec HOSTS uptime` or
// `sortie run ./program`, and gives the form that works here.
#include <fmt/core.h>

#include <algorithm>

#include "common/base/shell_text.h"
#include "common/cli/command_line.h"
#include "common/cli/tree.h"

namespace sortie::cli {
namespace {

bool is_config(std::string_view word) {
  return word.ends_with(".toml");
}

/// Separates the words of one command line into Sortie's and the program's.
class Sorter {
 public:
  explicit Sorter(const CLI::App& root) : level_(&root) {}

  /// Returns false if the word is a flag that the verb does not have, which ends the search.
  bool take(const std::string& word) {
    if (!program_.empty()) return program_.push_back(word), true;
    if (value_follows_) return ours_.push_back(word), value_follows_ = false, true;
    if (word.starts_with("-") && word.size() > 1) return take_option(word);
    if (const CLI::App* sub = subverb(*level_, word)) {
      level_ = sub;
      ours_.push_back(word);
      return true;
    }
    take_word(word);
    return true;
  }

  const CLI::App& verb() const { return *level_; }
  std::string text(std::string_view name) const {
    if (program_.empty() && !hosts_only_) return "";
    return fmt::format("{} {} -- {}", name, shell_text(ours_),
                       program_.empty() ? "COMMAND" : shell_text(program_));
  }

 private:
  bool take_option(const std::string& word) {
    const std::string name = word.substr(0, word.find('='));
    const CLI::Option* option = level_->get_option_no_throw(name);
    if (option == nullptr) return false;
    if (name == "--hosts" || name == "--config") has_hosts_ = true;
    ours_.push_back(word);
    value_follows_ = takes_value(*option) && !word.contains('=');
    return true;
  }

  void take_word(const std::string& word) {
    const bool takes_config = !positionals(*level_).empty();
    if (takes_config && is_config(word)) {
      ours_.push_back(word);
      has_hosts_ = true;
    } else if (!takes_config && !has_hosts_) {  // `exec HOSTS PROGRAM`
      ours_.insert(ours_.end(), {"--hosts", word});
      has_hosts_ = hosts_only_ = true;
    } else {
      program_.push_back(word);
    }
  }

  const CLI::App* level_;
  std::vector<std::string> ours_, program_;
  bool value_follows_ = false, has_hosts_ = false, hosts_only_ = false;
};

}  // namespace

std::string with_program_behind_dashes(const CLI::App& root, const Verbs& verbs,
                                       const std::vector<std::string>& arguments) {
  Sorter sorter(root);
  for (const std::string& word : arguments)
    if (!sorter.take(word)) return "";
  const auto verb = std::ranges::find(verbs, &sorter.verb(), &Verb::app);
  if (verb == verbs.end() || !verb->takes_program) return "";
  return sorter.text(root.get_name());
}

}  // namespace sortie::cli
