// The one table of config keys: where each lives, what it may be, and what it is for. Loading,
// --set, to_toml, `config show`, the JSON schema, docs/config.md and `config init` all read it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"

namespace sortie::config {

/// Where the value of a key lives in a JobConfig; which alternative it is decides the kind.
using Slot = std::variant<bool*, std::int64_t*, double*, std::string*, std::vector<std::string>*,
                          std::map<std::string, std::string>*, Milliseconds*,
                          std::vector<std::vector<std::string>>*>;

/// The slot at the end of a path of members, as in member<&JobConfig::runner, &RunnerConfig::mpi>.
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
  bool without_min = false, without_max = false;  // the bound itself is not allowed
};
struct DurationRange {
  std::string_view min, max;
};
/// One of a few words.
struct Choices {
  std::vector<std::string_view> words;
};
/// Text of a form of its own; of a list each item, of a table each name. Of a list of lists it is
/// checked with the items joined by NUL, which none of them may hold. `check` gives the error
/// "why; what to do", and nothing for good text.
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
  kSecrets = 4,         // every value of the table is a secret: shown as kSecretShown
  kMayHoldSecrets = 8,  // those whose names look like secrets are; messages never repeat a value
  kUser = 32,           // not about one job: a user's defaults (user_file.h) may set it
};

struct Field {
  std::string_view key;  // "runner.ssh.port"
  Slot (*slot)(JobConfig&);
  Rule rule;
  std::string_view unit;  // of a number, "" for none
  std::string_view help;  // one sentence, no period
  unsigned flags = kPlain;
};

struct Section {
  std::string_view name;  // "runner.ssh"
  std::string_view help;
};

/// All keys, section by section in the order of sections().
std::span<const Field> fields();
/// Those of [runner.container], which are a part of it.
std::vector<Field> container_fields();
std::span<const Section> sections();
/// Those of [recovery] and [watchdog] (fields_recovery.cc), a part of fields().
std::span<const Field> recovery_fields();
/// Those of [logger] to [profiler] (fields_training.cc), a part of fields().
std::span<const Field> training_fields();

/// The field of a full key, or nullptr.
const Field* find_field(std::string_view key);

Kind kind_of(const Field& field);
std::string_view section_of(const Field& field);  // "runner.ssh"
std::string_view name_of(const Field& field);     // "port"

/// What is wrong with the value in `job` ("why; what to do"), empty when it is allowed.
std::string check_value(const Field& field, const JobConfig& job);

/// What is allowed, for people: "0 to 65535", "auto | on | off".
std::string allowed_text(const Field& field);

/// The value as TOML, and the same of a default-constructed job.
std::string value_text(const Field& field, const JobConfig& job);
std::string default_text(const Field& field);

/// Makes every relative path absolute against `base` and every "~/" against `home`. The launcher
/// does it once, after loading and before planning, with its current and home folder.
void resolve_paths(JobConfig& job, std::string_view base, std::string_view home);

}  // namespace sortie::config
