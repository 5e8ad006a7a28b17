#include "common/config/load.h"

#include <fmt/core.h>

#include <algorithm>

#include "common/base/atomic_file.h"
#include "common/config/assign.h"
#include "common/config/loader.h"
#include "common/config/secret.h"
#include "common/config/spelling.h"
#include "common/config/text.h"

namespace sortie::config {
namespace {

constexpr std::size_t kMaxFileBytes = 4u << 20;
constexpr std::size_t kMaxProblems = 100;

/// Whether the item is a secret whose value is given in plain text.
bool exposes_secret(const Field& field, const Value& item) {
  const bool secret =
      (field.flags & kSecrets) || ((field.flags & kMayHoldSecrets) && looks_secret(item.key));
  return secret && !(item.type == Value::Type::text && item.text == kSecretShown);
}

}  // namespace

std::string Loader::where(Source source) const {
  if (source.override_index > 0) {
    const std::string& text = overrides_[source.override_index - 1];
    // The value of a mistyped variable may be a secret too, so only known harmless values are
    // shown.
    const std::string key = text.substr(0, std::min(text.find('='), text.find(':')));
    const Field* field = find_field(key);
    const bool plain = field != nullptr && !(field->flags & kMayHoldSecrets);
    return fmt::format("--set {}", shorten(plain ? text : key));
  }
  const std::string& name = source.from == From::user_file ? user_->name : name_;
  if (source.at.line == 0) return name;
  return fmt::format("{}:{}:{}", name, source.at.line, source.at.column);
}

void Loader::report(Source source, std::string text) {
  problems_.push_back(
      {source.from, source.override_index, source.at, fmt::format("{}: {}", where(source), text)});
}

void Loader::report_unknown(const Value& entry, const std::string& key) {
  report(in_file(entry.key_at),
         entry.type == Value::Type::table ? unknown_section(key) : unknown_key(key));
  read_as_meant(entry, key);
}

/// Reads an unknown key or section as the existing one near it, so that its other problems are in
/// the same report.
void Loader::read_as_meant(const Value& entry, const std::string& key) {
  if (entry.type == Value::Type::table) {
    if (const std::string_view section = meant_section(key); !section.empty())
      read_table(entry, std::string(section));
    return;
  }
  const Field* field = meant_field(key);
  if (field == nullptr || sources_.contains(field->key)) return;
  if (assign(*field, entry, loaded_.job).empty())
    sources_[std::string(field->key)] = in_file(entry.at);
  else
    bad_keys_.insert(std::string(field->key));
}

void Loader::read_table(const Value& table, const std::string& prefix) {
  for (const Value& entry : table.items)
    read_entry(entry, prefix.empty() ? entry.key : prefix + "." + entry.key);
}

void Loader::read_entry(const Value& entry, const std::string& key) {
  if (const Field* field = find_field(key)) {
    if (reading_ == From::user_file && !(field->flags & kUser))
      return report(in_file(entry.key_at),
                    fmt::format("{}: is about one job, and this file holds for all of yours; write "
                                "it into the job's config, or give it with --set",
                                key));
    return set(*field, entry, in_file(entry.at));
  }
  if (!is_section(key)) return report_unknown(entry, key);
  if (entry.type == Value::Type::table) return read_table(entry, key);
  report(in_file(entry.at), fmt::format("{}: is a section, not {}; write [{}] and its keys below",
                                        key, describe(entry), key));
}

void Loader::set(const Field& field, const Value& value, Source source) {
  const std::string key(field.key);
  sources_[key] = source;
  loaded_.origins[key] = source.from == From::options ? "--set"
                         : source.from == From::file  ? where(source)
                                                      : fmt::format("user's {}", where(source));
  for (const AssignError& error : assign(field, value, loaded_.job)) {
    bad_keys_.insert(key);
    Source at = source;
    if (source.from != From::options) at.at = error.at;
    report(at, fmt::format("{}: {}", key, error.message));
  }
}

/// Sets one variable of a table and keeps the others.
void Loader::set_variable(const Field& field, Value item, Source source) {
  if (exposes_secret(field, item)) return report_exposed(item.key, source);
  Value table;
  for (const auto& [name, old] :
       *std::get<std::map<std::string, std::string>*>(field.slot(loaded_.job))) {
    if (name == item.key) continue;
    Value& other = table.items.emplace_back();
    other.type = Value::Type::text;
    other.key = name;
    other.text = old;
  }
  table.items.push_back(std::move(item));
  set(field, table, source);
}

void Loader::report_exposed(std::string_view name, Source source) {
  report(source,
         fmt::format("{}: a secret on the command line is in the process list of this machine; "
                     "export it and write --set 'runner.secret_env.{}={}', or put it into "
                     "runner.secrets_file",
                     shorten(name), shorten(name), kSecretShown));
}

void Loader::apply_override(std::size_t index) {
  const std::string_view text = overrides_[index - 1];
  const Source source = of_override(index);
  const std::size_t equals = text.find('=');
  if (equals == text.npos) return report(source, "has no '='; write --set key=value");
  const std::string key(text.substr(0, equals));
  const std::string_view right = text.substr(equals + 1);
  for (const std::string_view table :
       {"runner.env", "runner.secret_env", "runner.container.env", "data.validation_sets"}) {
    const std::string prefix = fmt::format("{}.", table);
    if (!key.starts_with(prefix)) continue;
    // A variable may have any text, also one that begins with a quote.
    Value item = override_value(Kind::text, right).value_or(text_value(right));
    item.key = key.substr(prefix.size());
    return set_variable(*find_field(table), std::move(item), source);
  }
  const Field* field = find_field(key);
  if (field == nullptr)
    return report(source, is_section(key) ? fmt::format("{} is a section; set one of its keys", key)
                                          : unknown_key(key));
  const Result<Value> value = override_value(kind_of(*field), right);
  if (!value) {
    bad_keys_.insert(key);
    return report(source, fmt::format("{}: {}", key, value.error().message));
  }
  for (const Value& item : value->items)
    if (exposes_secret(*field, item)) return report_exposed(item.key, source);
  set(*field, *value, source);
}

/// Reads the user's defaults, which everything else overrides. Its problems are in the same report.
void Loader::read_user_file() {
  if (user_ == nullptr) return;
  reading_ = From::user_file;
  const Document document = parse_document(user_->text);
  for (const SyntaxError& error : document.errors) report(in_file(error.at), error.message);
  read_table(document.root, "");
  reading_ = From::file;
}

std::string Loader::message() const {
  std::string text;
  for (std::size_t i = 0; i < problems_.size(); ++i) {
    if (i == kMaxProblems)
      return text + fmt::format("\n{}: and {} more", name_, problems_.size() - kMaxProblems);
    if (i > 0) text += '\n';
    text += problems_[i].text;
  }
  return text;
}

Result<LoadedJob> Loader::load(std::string_view text) {
  if (text.size() > kMaxFileBytes)
    return fail(ErrorCode::config, fmt::format("{}: larger than the limit of {} bytes for a config",
                                               name_, kMaxFileBytes));
  read_user_file();
  Document document = parse_document(text);
  for (const SyntaxError& error : document.errors) report(in_file(error.at), error.message);
  apply_preset(document.root);
  read_table(document.root, "");
  for (std::size_t index = 1; index <= overrides_.size(); ++index) apply_override(index);
  give_way();
  ignore_unread();
  // If lines are missing, rules that involve several keys would judge a job that was never written.
  if (document.errors.empty()) check_rules();
  warn_of_preset();
  if (problems_.empty()) return std::move(loaded_);
  std::ranges::stable_sort(problems_, [](const Problem& a, const Problem& b) {
    return std::tie(a.from, a.override_index, a.at) < std::tie(b.from, b.override_index, b.at);
  });
  return fail(ErrorCode::config, message());
}

Result<LoadedJob> load_job_text(std::string_view text, std::string_view name,
                                const std::vector<std::string>& overrides, const Amend& amend,
                                const UserFile* user) {
  return Loader(name, overrides, amend, user).load(text);
}

Result<LoadedJob> load_job(const std::filesystem::path& file,
                           const std::vector<std::string>& overrides, const Amend& amend,
                           const UserFile* user) {
  auto text = read_file(file, kMaxFileBytes);
  if (!text) {
    if (text.error().code == ErrorCode::not_found)
      text.error().message += "; `sortie config init` prints a config to start from";
    return std::unexpected(std::move(text).error());
  }
  return load_job_text(*text, file.string(), overrides, amend, user);
}

Result<LoadedJob> load_job_text(std::string_view text, std::string_view name,
                                const std::vector<std::string>& overrides, const Amend& amend) {
  return load_job_text(text, name, overrides, amend, nullptr);
}

Result<LoadedJob> load_job(const std::filesystem::path& file,
                           const std::vector<std::string>& overrides, const Amend& amend) {
  return load_job(file, overrides, amend, nullptr);
}

std::string to_toml(const JobConfig& job) {
  std::string text;
  for (const Section& section : sections()) {
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section.name);
    for (const Field& field : fields())
      if (section_of(field) == section.name)
        text += fmt::format("{} = {}\n", name_of(field), value_text(field, job));
  }
  return text;
}

}  // namespace sortie::config
