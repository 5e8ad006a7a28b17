// The only file that includes toml++.
#include "common/config/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <tuple>

#include "common/base/atomic_file.h"
#include "common/config/fields.h"
#include "common/config/validate.h"

#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

namespace sortie::config {
namespace {

constexpr std::size_t kMaxFileBytes = 4u << 20;

struct Problem {
  std::size_t line, column;  // 0 for --set and for the file as a whole
  std::string where, message;
};

/// Collects every problem of one load.
class Loader {
 public:
  LoadedJob loaded;

  void load_text(std::string_view text, std::string_view name) {
    name_ = name;
    toml::parse_result result = toml::parse(text, name);
    if (!result) {
      add(result.error().source(), std::string(result.error().description()));
      return;
    }
    walk(result.table(), "");
  }

  void apply_override(const std::string& text) {
    override_ = fmt::format("--set {}", text);
    const auto equals = text.find('=');
    const std::string key = text.substr(0, equals);
    if (equals == text.npos || key.empty()) {
      add({}, "a value is missing; write --set section.key=value");
    } else if (const Field* field = find_field(key)) {
      set_from_text(*field, text.substr(equals + 1));
    } else if (const auto dot = key.rfind('.'); dot != key.npos &&
                                                find_field(key.substr(0, dot)) != nullptr &&
                                                std::holds_alternative<StringMap& (*)(JobConfig&)>(
                                                    find_field(key.substr(0, dot))->member)) {
      const auto get = std::get<StringMap& (*)(JobConfig&)>(find_field(key.substr(0, dot))->member);
      get(loaded.job)[key.substr(dot + 1)] = text.substr(equals + 1);
      loaded.origins[key.substr(0, dot)] = "--set";
    } else {
      add({}, unknown_key(key));
    }
    override_.clear();
  }

  void check_rules() {
    for (const Violation& violation : validate(loaded.job)) {
      const std::string& key = violation.keys.front();
      const auto origin = loaded.origins.find(key);
      const std::string message = fmt::format("{}: {}", key, violation.message);
      if (origin != loaded.origins.end() && origin->second != "--set") {
        // "file:line:col" as recorded below; kept whole, sorted by what it ends with.
        const auto [line, column] = positions_[key];
        problems_.push_back({line, column, origin->second, message});
      } else {
        problems_.push_back(
            {0, 0, origin == loaded.origins.end() ? std::string(name_) : "--set", message});
      }
    }
  }

  bool clean() const { return problems_.empty(); }
  Error error() {
    std::ranges::stable_sort(problems_, {},
                             [](const Problem& p) { return std::tuple(p.line, p.column); });
    std::string text;
    for (const Problem& problem : problems_) {
      if (!text.empty()) text += '\n';
      text += problem.where.empty() ? problem.message
                                    : fmt::format("{}: {}", problem.where, problem.message);
    }
    return {ErrorCode::config, std::move(text)};
  }

 private:
  void add(const toml::source_region& region, std::string message) {
    if (!override_.empty())
      problems_.push_back({0, 0, override_, std::move(message)});
    else
      problems_.push_back(
          {region.begin.line, region.begin.column, position(region), std::move(message)});
  }
  std::string position(const toml::source_region& region) const {
    return fmt::format("{}:{}:{}", name_, region.begin.line, region.begin.column);
  }

  std::string unknown_key(const std::string& key) const {
    std::vector<std::string> keys, same_name;
    const std::string name = key.substr(key.rfind('.') + 1);
    for (const Field& field : fields()) {
      keys.emplace_back(field.key);
      if (field.name() == name) same_name.emplace_back(field.key);
    }
    // The right key under the wrong section is likelier than a typing error.
    std::string guess = same_name.empty() ? nearest(key, keys) : same_name.front();
    if (guess.empty()) {
      std::vector<std::string> names;
      for (const Field& field : fields()) names.emplace_back(field.name());
      if (const std::string near = nearest(name, names); !near.empty())
        guess =
            fields()[static_cast<std::size_t>(std::ranges::find(names, near) - names.begin())].key;
    }
    return guess.empty() ? fmt::format("unknown key {}; `sortie config schema` lists all keys", key)
                         : fmt::format("unknown key {}; did you mean {}?", key, guess);
  }

  void walk(const toml::table& table, const std::string& prefix) {
    for (const auto& [name, node] : table) {
      const std::string key =
          prefix.empty() ? std::string(name.str()) : fmt::format("{}.{}", prefix, name.str());
      if (const Field* field = find_field(key)) {
        if (set(*field, node)) {
          loaded.origins[key] = position(name.source());
          positions_[key] = {name.source().begin.line, name.source().begin.column};
        }
        continue;
      }
      const auto all = sections();
      const bool section = std::ranges::find(all, std::string_view(key)) != all.end();
      if (section && node.is_table()) {
        walk(*node.as_table(), key);
      } else if (section) {
        add(name.source(), fmt::format("{} is a section; write [{}]", key, key));
      } else if (node.is_table()) {
        const std::vector<std::string> names(all.begin(), all.end());
        const std::string guess = nearest(key, names);
        add(name.source(),
            guess.empty()
                ? fmt::format("unknown section [{}]; sections are {}", key, fmt::join(all, ", "))
                : fmt::format("unknown section [{}]; did you mean [{}]?", key, guess));
      } else {
        add(name.source(), unknown_key(key));
      }
    }
  }

  void set_from_text(const Field& field, const std::string& value) {
    toml::parse_result result = toml::parse("value = " + value);
    // A bare word is a string: --set model.architecture=llama needs no quotes.
    const bool wants_text = std::holds_alternative<std::string& (*)(JobConfig&)>(field.member) ||
                            std::holds_alternative<Milliseconds& (*)(JobConfig&)>(field.member);
    if (!result || (wants_text && !result.table().get("value")->is_string())) {
      if (!wants_text) {
        add({}, fmt::format("{}: '{}' is no {}", field.key, value, type_name(field)));
        return;
      }
      toml::table table;
      table.insert("value", value);
      if (set(field, *table.get("value"))) loaded.origins[std::string(field.key)] = "--set";
      return;
    }
    if (set(field, *result.table().get("value"))) loaded.origins[std::string(field.key)] = "--set";
  }

  /// Stores a node's value; false after a problem was added.
  bool set(const Field& field, const toml::node& node) {
    return std::visit([&](auto* get) { return store(field, node, get(loaded.job)); }, field.member);
  }

  bool wrong_type(const Field& field, const toml::node& node) {
    std::string message = fmt::format("{}: a {} is expected", field.key, type_name(field));
    if (type_name(field) == "integer")
      message = fmt::format("{}: an integer is expected", field.key);
    if (type_name(field) == "duration") message += " like \"30s\", \"500ms\", \"2m\" or \"1h\"";
    if (type_name(field) == "list of strings") message += " like [\"a\", \"b\"]";
    add(node.source(), message);
    return false;
  }
  bool in_range(const Field& field, const toml::node& node, double value,
                const std::string& shown) {
    if (value >= field.low && value <= field.high) return true;
    const auto limit = [&](double number) {
      if (type_name(field) == "duration")
        return format_duration(Milliseconds(static_cast<std::int64_t>(number)));
      return fmt::format("{}", number);
    };
    if (field.high == std::numeric_limits<double>::infinity())
      add(node.source(),
          fmt::format("{} = {} is out of range; at least {}", field.key, shown, limit(field.low)));
    else
      add(node.source(), fmt::format("{} = {} is out of range; between {} and {}", field.key, shown,
                                     limit(field.low), limit(field.high)));
    return false;
  }

  bool store(const Field& field, const toml::node& node, bool& to) {
    if (!node.is_boolean()) return wrong_type(field, node);
    to = **node.as_boolean();
    return true;
  }
  bool store(const Field& field, const toml::node& node, std::int64_t& to) {
    if (!node.is_integer()) return wrong_type(field, node);
    const std::int64_t value = **node.as_integer();
    if (!in_range(field, node, static_cast<double>(value), fmt::format("{}", value))) return false;
    to = value;
    return true;
  }
  bool store(const Field& field, const toml::node& node, double& to) {
    if (!node.is_number()) return wrong_type(field, node);
    const double value =
        node.is_integer() ? static_cast<double>(**node.as_integer()) : **node.as_floating_point();
    if (!in_range(field, node, value, fmt::format("{}", value))) return false;
    to = value;
    return true;
  }
  bool store(const Field& field, const toml::node& node, std::string& to) {
    if (!node.is_string()) return wrong_type(field, node);
    const std::string& value = **node.as_string();
    if (!field.choices.empty() && std::ranges::find(field.choices, value) == field.choices.end()) {
      add(node.source(), fmt::format("{} = {} is unknown; one of {}", field.key, quote(value),
                                     fmt::join(field.choices, ", ")));
      return false;
    }
    to = value;
    return true;
  }
  bool store(const Field& field, const toml::node& node, Milliseconds& to) {
    if (!node.is_string()) return wrong_type(field, node);
    const std::string& text = **node.as_string();
    double value = 0;
    const auto [unit, error] =
        std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
    const std::string_view suffix(unit, text.data() + text.size());
    double scale = 0;
    if (suffix == "ms") scale = 1;
    if (suffix == "s") scale = 1e3;
    if (suffix == "m") scale = 60e3;
    if (suffix == "h") scale = 3600e3;
    if (error != std::errc() || scale == 0 || !(value * scale < 9e15)) {
      add(node.source(),
          fmt::format("{} = {}: no duration; write a number and a unit (ms, s, m, h), like \"30s\"",
                      field.key, quote(text)));
      return false;
    }
    if (!in_range(field, node, value * scale, quote(text))) return false;
    to = Milliseconds(static_cast<std::int64_t>(value * scale + 0.5));
    return true;
  }
  bool store(const Field& field, const toml::node& node, std::vector<std::string>& to) {
    if (!node.is_array()) return wrong_type(field, node);
    std::vector<std::string> values;
    for (const toml::node& item : *node.as_array()) {
      if (!item.is_string()) return wrong_type(field, item);
      values.push_back(**item.as_string());
    }
    to = std::move(values);
    return true;
  }
  bool store(const Field& field, const toml::node& node, StringMap& to) {
    if (!node.is_table()) return wrong_type(field, node);
    StringMap values;
    for (const auto& [name, item] : *node.as_table()) {
      if (!item.is_string()) return wrong_type(field, item);
      values[std::string(name.str())] = **item.as_string();
    }
    to = std::move(values);
    return true;
  }

  std::string_view name_;
  std::string override_;
  std::vector<Problem> problems_;
  std::map<std::string, std::pair<std::size_t, std::size_t>> positions_;
};

}  // namespace

Result<LoadedJob> load_job_text(std::string_view text, std::string_view name,
                                const std::vector<std::string>& overrides) {
  Loader loader;
  loader.load_text(text, name);
  for (const std::string& item : overrides) loader.apply_override(item);
  // Rules over several keys only make sense once each key by itself is right.
  if (loader.clean()) loader.check_rules();
  if (!loader.clean()) return std::unexpected(loader.error());
  return std::move(loader.loaded);
}

Result<LoadedJob> load_job(const std::filesystem::path& file,
                           const std::vector<std::string>& overrides) {
  auto text = read_file(file, kMaxFileBytes);
  if (!text) {
    Error error = std::move(text).error();
    if (error.code != ErrorCode::not_found) error.code = ErrorCode::config;
    return std::unexpected(std::move(error));
  }
  return load_job_text(*text, file.string(), overrides);
}

std::string to_toml(const JobConfig& job) {
  std::string out;
  std::string_view section;
  for (const Field& field : fields()) {
    if (field.section() != section) {
      section = field.section();
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    }
    out += fmt::format("{} = {}\n", field.name(), toml_value(field, job));
  }
  return out;
}

void resolve_paths(JobConfig& job, const std::filesystem::path& base) {
  const char* home = std::getenv("HOME");
  const auto resolve = [&](std::string& path) {
    if (path.empty()) return;
    if (home != nullptr && (path == "~" || path.starts_with("~/"))) path = home + path.substr(1);
    path = (base / path).lexically_normal().string();
  };
  for (const Field& field : fields()) {
    if (!field.is_path) continue;
    if (const auto* one = std::get_if<std::string& (*)(JobConfig&)>(&field.member))
      resolve((*one)(job));
    if (const auto* many = std::get_if<std::vector<std::string>& (*)(JobConfig&)>(&field.member))
      for (std::string& path : (*many)(job)) resolve(path);
  }
}

}  // namespace sortie::config
