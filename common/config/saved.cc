#include "common/config/saved.h"

#include <fmt/core.h>

#include <string>

#include "common/config/assign.h"
#include "common/config/document.h"
#include "common/config/fields.h"

namespace sortie::config {
namespace {

std::unexpected<Error> bad(std::string_view name, Position at, std::string_view message) {
  return fail(ErrorCode::config, fmt::format("{}:{}:{}: {}", name, at.line, at.column, message));
}

Result<> read_table(const Value& table, const std::string& prefix, std::string_view name,
                    JobConfig& job) {
  for (const Value& entry : table.items) {
    const std::string key = prefix + entry.key;
    if (const Field* field = find_field(key)) {
      for (const AssignError& error : assign(*field, entry, job))
        return bad(name, error.at, fmt::format("{}: {}", key, error.message));
    } else if (entry.type == Value::Type::table) {
      SORTIE_TRY(read_table(entry, key + ".", name, job));
    }
  }
  return {};
}

}  // namespace

Result<JobConfig> parse_saved_job(std::string_view text, std::string_view name) {
  const Document document = parse_document(text);
  for (const SyntaxError& error : document.errors) return bad(name, error.at, error.message);
  JobConfig job;
  SORTIE_TRY(read_table(document.root, "", name, job));
  return job;
}

}  // namespace sortie::config
