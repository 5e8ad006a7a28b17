// The table of config keys: the struct member, the allowed values and the purpose of each key.
// Loading, --set, to_toml, `config show`, the JSON schema, docs/config.md and `config init` use it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"

namespace sortie::config {

/// Pointer to the member of a JobConfig that holds a key's value. Its type determines the Kind.
using Slot = std::variant<bool*, std::int64_t*, double*, std::string*, std::vector<std::string>*,
                          std::map<std::string, std::string>*, Milliseconds*,
                          std::vector<std::vector<std::string>>*>;

/// The slot of a nested member, as in member<&JobConfig::runner, &RunnerConfig::mpi>.
template <auto... Path>
Slot member(JobConfig& job) {
  return &(job.*....*Path);
}

enum class Kind { boolean, integer, number, text, list, table, duration, lists };  // order of Slot

struct IntegerRange {
  std::int64_t min, max;
};
struct NumberRange {
  double min, max;
  bool without_min = false, without_max = false;  // the bound itself is excluded
  bool wide = false;  // the key is read as f64: the trainer reads others as f32
};
struct DurationRange {
  std::string_view min, max;
};
/// One of a few words is allowed.
struct Choices {
  std::vector<std::string_view> words;
};
/// A check for text. It applies to each item of a list and to each name of a table. For a list of
/// lists it applies to the items of each inner list, joined by NUL, which no item may contain.
/// `check` returns the error "why; what to do", or "" for valid text.
struct Form {
  std::string_view description;
  std::string (*check)(std::string_view);
};
using Rule = std::variant<std::monostate, IntegerRange, NumberRange, DurationRange, Choices, Form>;

enum Flags : unsigned {
  kPlain = 0,
  kShown = 1,           // `config init` writes the key, uncommented
  kCommon = 16,         // `config init` writes the key, commented out; without either: with --all
  kPath = 2,            // resolve_paths() makes it absolute
  kSecrets = 4,         // every value of the table is a secret, shown as kSecretShown
  kMayHoldSecrets = 8,  // values are secrets if looks_secret(name); messages never repeat a value
  kUser = 32,           // not specific to one job: allowed in the user's defaults (user_file.h)
};

struct Field {
  std::string_view key;  // "runner.ssh.port"
  Slot (*slot)(JobConfig&);
  Rule rule;
  std::string_view unit;  // unit of a number; "" = none
  std::string_view help;  // one sentence, no period
  unsigned flags = kPlain;
};

struct Section {
  std::string_view name;  // "runner.ssh"
  std::string_view help;
};

/// All keys, section by section in the order of sections().
std::span<const Field> fields();
/// The keys of [runner.container], a part of fields().
std::vector<Field> container_fields();
std::span<const Section> sections();
/// The keys of [recovery] and [watchdog] (fields_recovery.cc), a part of fields().
std::span<const Field> recovery_fields();
/// The keys of [logger] to [profiler] (fields_training.cc), a part of fields().
std::span<const Field> training_fields();

/// The field of a full key, or nullptr.
const Field* find_field(std::string_view key);

Kind kind_of(const Field& field);
std::string_view section_of(const Field& field);  // "runner.ssh"
std::string_view name_of(const Field& field);     // "port"

/// Returns what is wrong with the value in `job` ("why; what to do"); empty if it is allowed.
std::string check_value(const Field& field, const JobConfig& job);

/// The allowed values in words: "0 to 65535", "auto | on | off".
std::string allowed_text(const Field& field);

/// The value in `job`, or the default, as TOML.
std::string value_text(const Field& field, const JobConfig& job);
std::string default_text(const Field& field);

/// Makes every relative path absolute against `base`, and every "~/" against `home`. The launcher
/// calls this once, after loading and before planning, with its current and its home folder.
void resolve_paths(JobConfig& job, std::string_view base, std::string_view home);

}  // namespace sortie::config
