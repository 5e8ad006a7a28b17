// Recognizes command lines in the style of other tools, `sortie exec HOSTS uptime`,
// `run -n 4 ./program`, and gives the form that works here.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "common/base/command_name.h"
#include "common/base/shell_text.h"
#include "common/cli/parse_error.h"
#include "common/cli/tree.h"
#include "common/config/hostlist.h"
#include "common/config/text.h"

namespace sortie::cli {
namespace {

/// Options of pdsh, mpirun and torchrun, with the option of Sortie that has their purpose.
struct Foreign {
  enum Value { same, ranks_of_all, ranks_of_each, nodes };
  std::string_view name, ours;
  Value value = same;
  std::string_view key = "";  // of the config
};
constexpr Foreign kForeign[] = {
    {"-w", "--hosts"},
    {"-H", "--hosts"},
    {"--host", "--hosts"},
    {"--hostfile", "--set", Foreign::same, "runner.hosts_file="},
    {"--machinefile", "--set", Foreign::same, "runner.hosts_file="},
    {"-n", "--slots", Foreign::ranks_of_all},
    {"-np", "--slots", Foreign::ranks_of_all},
    {"--nproc-per-node", "--slots", Foreign::ranks_of_each},
    {"--nproc_per_node", "--slots", Foreign::ranks_of_each},
    {"--nnodes", "--hosts", Foreign::nodes},
};

bool is_config(std::string_view word) {
  return word.ends_with(".toml");
}

std::optional<std::size_t> number_of(std::string_view text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number == 0) return std::nullopt;
  return number;
}

/// Separates the words of one command line into Sortie's and the program's.
class Sorter {
 public:
  Sorter(const CLI::App& root, const Program* program) : level_(&root), behind_dashes_(program) {
    if (program) program_ = *program;
  }

  /// Returns false if the word should name a verb and does not, which ends the search.
  bool take(const std::string& word) {
    if (!behind_dashes_ && !program_.empty()) return program_.push_back(word), true;
    if (wanting_) return take_foreign(*std::exchange(wanting_, nullptr), word), true;
    if (value_follows_) return take_value(word), true;
    if (word.starts_with("-") && word.size() > 1) return take_option(word), true;
    if (const CLI::App* sub = subverb(*level_, word)) {
      level_ = sub;
      ours_.push_back(word);
      return true;
    }
    if (!subverbs(*level_).empty()) return false;
    take_word(word);
    return true;
  }

  const CLI::App& verb() const { return *level_; }
  Slip slip(bool takes_program) {
    if (wanting_) unknown_ = true;
    add_ranks();
    slip_.form = moved_ && !unknown_ ? form(takes_program) : "";
    return slip_;
  }

 private:
  bool has(std::string_view option) const {
    return level_->get_option_no_throw(std::string(option)) != nullptr;
  }
  bool gave(std::string_view option) const {
    return std::ranges::find(ours_, option) != ours_.end();
  }

  void take_value(const std::string& word) {
    if (ours_.back() == "--hosts") hosts_ = word;
    ours_.push_back(word);
    value_follows_ = false;
  }

  void take_option(const std::string& word) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const CLI::Option* option = level_->get_option_no_throw(name);
    // CLI11 reads -qv as -q -v.
    const bool joined = !option && !word.starts_with("--") && has(word.substr(0, 2));
    if (!option && !joined) return take_unknown(name, word, equals);
    if (name == "--hosts" || name == "--config") has_hosts_ = true;
    if (name == "--hosts" && equals != word.npos) hosts_ = word.substr(equals + 1);
    ours_.push_back(word);
    value_follows_ = option && cli::takes_value(*option) && equals == word.npos;
  }

  void take_unknown(const std::string& name, const std::string& word, std::size_t equals) {
    const auto foreign = std::ranges::find_if(kForeign, [&](const Foreign& row) {
      // Only jobs have hosts that the config alone names.
      return row.name == name && has(row.ours) && (row.key.empty() || has("--slots"));
    });
    const bool found = foreign != std::end(kForeign);
    if (slip_.option.empty()) {
      slip_.option = name;
      slip_.ours = found ? std::string(foreign->ours) : near(name);
    }
    if (!found)
      unknown_ = true;
    else if (equals == word.npos)
      wanting_ = &*foreign;
    else
      take_foreign(*foreign, word.substr(equals + 1));
  }

  /// The option with a similar name. One letter resembles each other letter.
  std::string near(const std::string& name) const {
    if (!name.starts_with("--")) return "";
    std::vector<std::string> names;
    for (const CLI::Option* option : named_options(*level_))
      for (const std::string& spelling : spellings(*option)) names.push_back(spelling);
    return std::string(config::nearest(name, {names.begin(), names.end()}));
  }

  void take_foreign(const Foreign& foreign, const std::string& value) {
    moved_ = true;
    if (foreign.value == Foreign::same) {
      // `-H h1:4` has ranks in it.
      if (foreign.ours == "--hosts")
        add_hosts(value), unknown_ |= value.contains(':');
      else
        ours_.insert(ours_.end(),
                     {std::string(foreign.ours), fmt::format("{}{}", foreign.key, value)});
      has_hosts_ = true;
      return;
    }
    const auto number = number_of(value);
    unknown_ |= !number;
    if (!number) return;
    if (foreign.value == Foreign::nodes) nodes_ = *number;
    if (foreign.value == Foreign::ranks_of_all) ranks_ = *number;
    if (foreign.value != Foreign::ranks_of_each) return;
    from_torchrun_ = true;
    ours_.insert(ours_.end(), {"--slots", value});
  }

  /// Adds what depends on the hosts, which may come after the numbers.
  void add_ranks() {
    if (nodes_ > 1 && !has_hosts_) add_hosts("HOSTS");
    if (ranks_ == 0) return;
    std::size_t hosts = 1;
    if (has_hosts_) {
      const auto names = config::expand_host_expression(hosts_);
      hosts = names ? names->size() : 0;
    }
    if (hosts == 0 || ranks_ % hosts != 0) {
      unknown_ = true;
      return;
    }
    ours_.insert(ours_.end(), {"--slots", std::to_string(ranks_ / hosts)});
  }

  void add_hosts(const std::string& value) {
    ours_.insert(ours_.end(), {"--hosts", value});
    hosts_ = value;
    has_hosts_ = moved_ = true;
  }

  void take_word(const std::string& word) {
    const auto places = positionals(*level_);
    const bool own =
        place_ < places.size() && (places[place_]->get_name(true) != "config" || is_config(word));
    if (own) {
      if (places[place_]->get_name(true) == "config") has_hosts_ = true;
      if (places[place_]->get_items_expected_max() == 1) ++place_;
      ours_.push_back(word);
    } else if (places.empty() && !has_hosts_ && has("--hosts") && !looks_like_shell_line(word)) {
      add_hosts(word);  // `exec HOSTS PROGRAM`
    } else if (behind_dashes_) {
      unknown_ = true;
    } else {
      program_.push_back(word);
      moved_ = true;
    }
  }

  std::string form(bool takes_program) const {
    if (!takes_program) return program_.empty() ? command_line(ours_) : "";
    std::vector<std::string> ours = ours_, program = program_;
    if (program.size() == 1 && looks_like_shell_line(program.front()) && has("--shell") &&
        !gave("--shell"))
      ours.push_back("--shell");
    if (program.empty() && positionals(*level_).empty()) program = {"COMMAND"};
    if (from_torchrun_ && !program.empty() && program.front().ends_with(".py"))
      program.insert(program.begin(), "python3");
    return command_line(ours) + (program.empty() ? "" : " -- " + shell_text(program));
  }

  const CLI::App* level_;
  const bool behind_dashes_;
  std::vector<std::string> ours_, program_;
  Slip slip_;
  std::string hosts_;      // value of --hosts
  std::size_t place_ = 0;  // of the next positional
  std::size_t ranks_ = 0, nodes_ = 0;
  const Foreign* wanting_ = nullptr;  // its value follows
  bool value_follows_ = false, has_hosts_ = false, from_torchrun_ = false;
  bool moved_ = false;    // the form differs from what was given
  bool unknown_ = false;  // there is a word without a place in the form
};

}  // namespace

bool looks_like_shell_line(std::string_view word) {
  return word.find_first_of(" \t\n|&;<>$`") != word.npos;
}

Slip find_slip(const CLI::App& root, const Verbs& verbs, const std::vector<std::string>& arguments,
               const Program* program) {
  Sorter sorter(root, program);
  for (const std::string& word : arguments)
    if (!sorter.take(word)) break;
  const auto verb = std::ranges::find(verbs, &sorter.verb(), &Verb::app);
  Slip slip = sorter.slip(verb != verbs.end() && verb->takes_program);
  if (verb == verbs.end()) slip.form.clear();
  return slip;
}

}  // namespace sortie::cli
