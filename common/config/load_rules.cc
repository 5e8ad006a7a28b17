// Loader: which of two values wins, and the rules over several keys.
#include <fmt/core.h>

#include <algorithm>
#include <variant>

#include "common/config/architectures.h"
#include "common/config/assign.h"
#include "common/config/loader.h"
#include "common/config/validate.h"

namespace sortie::config {

/// Warns if `--set model.preset=...` is combined with keys that are set elsewhere: those keys win,
/// although the preset comes last on the command line. A preset and keys in one file are intended.
void Loader::warn_of_preset() {
  const auto named = sources_.find("model.preset");
  const Preset* preset = find_preset(loaded_.job.model.preset);
  if (preset == nullptr || named == sources_.end() || named->second.override_index == 0) return;
  JobConfig shape;
  shape.model = preset->model;
  std::string kept;
  for (const auto& [key, source] : sources_) {
    const Field* field = find_field(key);
    if (!key.starts_with("model.") || key == "model.preset" || key == "model.precision" ||
        key == "model.fp8_scaling" || source.override_index > named->second.override_index ||
        value_text(*field, loaded_.job) == value_text(*field, shape))
      continue;
    kept +=
        fmt::format("{}{} = {} ({}) instead of {}", kept.empty() ? "" : ", ", key,
                    value_text(*field, loaded_.job),
                    source.override_index > 0 ? "--set" : where(source), value_text(*field, shape));
  }
  if (kept.empty()) return;
  loaded_.warnings.push_back(
      fmt::format("{}: keys that are set win over the preset: {}; remove them, or set them after "
                  "the preset to the values that you want",
                  where(named->second), kept));
}

/// Applies the shape that model.preset names before all other keys, wherever the preset is set.
void Loader::apply_preset(const Value& root) {
  std::string name;
  for (const Value& section : root.items)
    if (section.key == "model")
      for (const Value& entry : section.items)
        if (entry.key == "preset" && entry.type == Value::Type::text) name = entry.text;
  for (const std::string& text : overrides_)
    if (constexpr std::string_view kKey = "model.preset="; text.starts_with(kKey))
      if (const auto value = override_value(Kind::text, std::string_view(text).substr(kKey.size())))
        name = value->text;
  const Preset* preset = find_preset(name);
  if (preset == nullptr) return;  // no preset, or an unknown one, which is reported with its key
  loaded_.job.model = preset->model;
  for (const Field& field : fields())
    if (field.key.starts_with("model.") && value_text(field, loaded_.job) != default_text(field))
      loaded_.origins[std::string(field.key)] = fmt::format("preset {}", name);
}

/// Resets a key of the user's file if the job sets one that excludes it.
void Loader::give_way() {
  for (const auto& [key, other] : {std::pair{"runner.transport", "runner.ssh.command"},
                                   std::pair{"runner.ssh.command", "runner.transport"},
                                   std::pair{"runner.ssh.persist", "runner.transport"},
                                   std::pair{"runner.ssh.persist", "runner.ssh.command"}}) {
    const auto mine = sources_.find(key), theirs = sources_.find(other);
    if (mine == sources_.end() || theirs == sources_.end() ||
        mine->second.from != From::user_file || theirs->second.from == From::user_file)
      continue;
    const Field& winner = *find_field(other);
    if (value_text(winner, loaded_.job) != default_text(winner)) reset(key);
  }
}

/// Source of a key's value. Keys that a preset sets have that of the preset; nullptr = default.
const Loader::Source* Loader::source_of(const std::string& key) const {
  if (const auto found = sources_.find(key); found != sources_.end()) return &found->second;
  const auto origin = loaded_.origins.find(key);
  if (origin == loaded_.origins.end() || !origin->second.starts_with("preset ")) return nullptr;
  const auto preset = sources_.find("model.preset");
  return preset == sources_.end() ? nullptr : &preset->second;
}

void Loader::reset(const std::string& key) {
  const Field& field = *find_field(key);
  JobConfig defaults;
  const Slot from = field.slot(defaults);
  std::visit([&](auto* value) { *value = *std::get<decltype(value)>(from); },
             field.slot(loaded_.job));
  loaded_.origins[key] = "default";
  sources_.erase(key);
}

/// If a --set selects what does not read a key of a file (Violation::unread), the key is ignored
/// with a warning: the file need not be edited to try another optimizer or schedule. If both come
/// from files, or both from --set, the rule is broken as usual.
void Loader::ignore_unread() {
  std::map<std::size_t, std::string> ignored;  // by the index of the --set
  const auto is_bad = [&](const std::string& key) { return bad_keys_.contains(key); };
  for (bool found = true; found;) {
    found = false;
    for (const Violation& violation : validate(loaded_.job)) {
      if (!violation.unread || std::ranges::any_of(violation.keys, is_bad)) continue;
      const std::string& key = violation.keys.front();
      const Source* const mine = source_of(key);
      const Source* const selector = source_of(violation.keys.back());
      if (mine == nullptr || mine->from == From::options || selector == nullptr ||
          selector->from != From::options)
        continue;
      std::string& keys = ignored[selector->override_index];
      keys += fmt::format("{}{} ({})", keys.empty() ? "" : ", ", key, where(*mine));
      reset(key);
      found = true;
    }
  }
  for (const auto& [index, keys] : ignored)
    loaded_.warnings.push_back(
        fmt::format("{}: nothing reads these keys then, they are ignored: {}",
                    where(of_override(index)), keys));
}

void Loader::report_broken(const Violation& violation) {
  const auto is_bad = [&](const std::string& key) { return bad_keys_.contains(key); };
  if (std::ranges::any_of(violation.keys, is_bad)) return;
  const std::string text = fmt::format("{}: {}", violation.keys.front(), violation.message);
  const auto from_options = [&](std::string_view origin) {
    problems_.push_back(
        {From::options, overrides_.size() + 1, {}, fmt::format("{}: {}", origin, text)});
  };
  if (text.starts_with("--")) return from_options("command line");
  for (const std::string& key : violation.keys) {
    const auto origin = loaded_.origins.find(key);
    if (origin != loaded_.origins.end() && origin->second.starts_with("--") &&
        origin->second != "--set")
      return from_options(origin->second);
    if (const auto found = sources_.find(key); found != sources_.end())
      return report(found->second, text);
  }
  report({}, text);
}

void Loader::check_rules() {
  const std::vector<Violation> further = amend_ ? amend_(loaded_) : std::vector<Violation>();
  const std::vector<Violation> broken = validate(loaded_.job);
  for (const Violation& violation : broken) report_broken(violation);
  // The rules of `amend` check more closely. A rule that is already broken is not reported twice.
  for (const Violation& violation : further)
    if (std::ranges::find(broken, violation.rule, &Violation::rule) == broken.end())
      report_broken(violation);
}

}  // namespace sortie::config
