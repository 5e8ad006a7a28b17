#include "common/config/saved.h"

#include <fmt/core.h>

#include <string>

#include "common/config/assign.h"
#include "common/config/document.h"
#include "common/config/fields.h"
#include "common/config/validate.h"

namespace sortie::config {
namespace {

std::unexpected<Error> bad(std::string_view name, Position at, std::string_view message) {
  return fail(ErrorCode::config, fmt::format("{}:{}:{}: {}", name, at.line, at.column, message));
}

bool describes_model(std::string_view key) {
  return key.starts_with("model.") || key.starts_with("lora.");
}

Result<> read_table(const Value& table, const std::string& prefix, std::string_view name,
                    bool whole_model, JobConfig& job) {
  for (const Value& entry : table.items) {
    const std::string key = prefix + entry.key;
    if (const Field* field = find_field(key)) {
      for (const AssignError& error : assign(*field, entry, job))
        return bad(name, error.at, fmt::format("{}: {}", key, error.message));
    } else if (entry.type == Value::Type::table) {
      SORTIE_TRY(read_table(entry, key + ".", name, whole_model, job));
    } else if (whole_model && describes_model(key)) {
      return bad(name, entry.key_at,
                 fmt::format("{}: this version does not know the key; use the version of "
                             "sortie-train that saved the checkpoint",
                             key));
    }
  }
  return {};
}

Result<JobConfig> parse(std::string_view text, std::string_view name, bool whole_model) {
  const Document document = parse_document(text);
  for (const SyntaxError& error : document.errors) return bad(name, error.at, error.message);
  JobConfig job;
  SORTIE_TRY(read_table(document.root, "", name, whole_model, job));
  return job;
}

}  // namespace

Result<JobConfig> parse_saved_job(std::string_view text, std::string_view name) {
  return parse(text, name, /*whole_model=*/false);
}

Result<JobConfig> parse_saved_model(std::string_view text, std::string_view name) {
  SORTIE_ASSIGN_OR_RETURN(JobConfig job, parse(text, name, /*whole_model=*/true));
  for (const Violation& violation : validate(job))
    if (const std::string& key = violation.keys.front(); describes_model(key))
      return fail(ErrorCode::config, fmt::format("{}: {}: {}", name, key, violation.message));
  return job;
}

}  // namespace sortie::config
