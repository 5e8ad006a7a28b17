// Parts of a config as TOML: changed keys, origins, and differences between two configs.
#include <fmt/core.h>

#include "common/config/architectures.h"
#include "common/config/describe.h"
#include "common/config/fields.h"

namespace sortie::config {
namespace {

constexpr std::size_t kLongLine = 100;

/// A job with the preset's shape; the defaults without a preset.
JobConfig shape_of_preset(const JobConfig& job) {
  JobConfig shape;
  if (const Preset* preset = find_preset(job.model.preset)) shape.model = preset->model;
  return shape;
}

/// Whether a config without this key would be a different job. A value that equals the default may
/// still differ from the preset's.
bool must_be_shown(const Field& field, const JobConfig& job, const JobConfig& shape) {
  const std::string value = value_text(field, job);
  return value != default_text(field) || value != value_text(field, shape);
}

bool is_in(std::string_view section, std::string_view name) {
  return section == name || section.starts_with(std::string(name) + ".");
}

/// Text of the sections that have lines, and of section `always`.
template <class Line>
std::string sections_text(std::string_view always, const Line& line_of) {
  std::string out;
  for (const Section& section : sections()) {
    std::string lines;
    for (const Field& field : fields())
      if (section_of(field) == section.name) lines += line_of(field);
    if (lines.empty() && section.name != always) continue;
    out += fmt::format("{}[{}]\n{}", out.empty() ? "" : "\n", section.name, lines);
  }
  return out;
}

}  // namespace

std::string show(const LoadedJob& job, ShowOptions options) {
  const JobConfig shape = shape_of_preset(job.job);
  std::string out = sections_text("", [&](const Field& field) -> std::string {
    if (!options.all && !must_be_shown(field, job.job, shape)) return "";
    const std::string line = fmt::format("{} = {}", name_of(field), value_text(field, job.job));
    if (!options.origin) return line + "\n";
    const auto origin = job.origins.find(std::string(field.key));
    return fmt::format("{:<48} # {}\n", line,
                       origin == job.origins.end() ? "default" : origin->second);
  });
  if (out.empty()) return "# Every key has its default value; --all shows them.\n";
  return out;
}

std::string section_toml(const JobConfig& job, std::string_view name) {
  const JobConfig shape = shape_of_preset(job);
  return sections_text(name, [&](const Field& field) -> std::string {
    if (!is_in(section_of(field), name) || !must_be_shown(field, job, shape)) return "";
    return fmt::format("{} = {}\n", name_of(field), value_text(field, job));
  });
}

std::string difference(const JobConfig& before, const JobConfig& after) {
  std::string out;
  for (const Field& field : fields()) {
    const std::string a = value_text(field, before), b = value_text(field, after);
    if (a == b) continue;
    const bool two_lines = field.key.size() + a.size() + b.size() > kLongLine;
    out += two_lines ? fmt::format("{}:\n  - {}\n  + {}\n", field.key, a, b)
                     : fmt::format("{}: {} -> {}\n", field.key, a, b);
  }
  return out;
}

std::vector<std::string> beside_preset(const JobConfig& job) {
  std::vector<std::string> out;
  if (find_preset(job.model.preset) == nullptr) return out;
  const JobConfig shape = shape_of_preset(job);
  for (const Field& field : fields())
    if (is_in(section_of(field), "model") && field.key != "model.preset" &&
        field.key != "model.precision" && field.key != "model.fp8_scaling" &&
        value_text(field, job) != value_text(field, shape))
      out.push_back(fmt::format("{} = {}", field.key.substr(std::string_view("model.").size()),
                                value_text(field, job)));
  return out;
}

}  // namespace sortie::config
