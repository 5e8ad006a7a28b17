#include "common/config/recorded.h"

#include <algorithm>

namespace sortie::config {
namespace {

/// A key as to_toml() has written it: a line of a section.
struct RemovedKey {
  std::string_view section, name;
};
constexpr RemovedKey kRemoved[] = {{"trainer", "eval_iterations"}};

}  // namespace

Result<LoadedJob> load_recorded_job(std::string_view text, std::string_view name) {
  std::string kept;
  std::string_view section;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end);
    if (line.starts_with('[')) section = line.substr(1, std::min(line.find(']'), line.size()) - 1);
    const bool removed = std::ranges::any_of(kRemoved, [&](const RemovedKey& key) {
      return section == key.section && line.starts_with(key.name) &&
             line.substr(key.name.size()).starts_with(" = ");
    });
    // An empty line keeps the line numbers of messages.
    kept += removed ? std::string_view("\n") : line;
  }
  return load_job_text(kept, name);
}

}  // namespace sortie::config
