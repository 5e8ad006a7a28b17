#include "common/config/stage.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "common/config/forms.h"
#include "common/config/text.h"
#include "common/config/validation_sets.h"

namespace sortie::config {
namespace {

constexpr std::string_view kArrow = " -> ";

std::string_view last_component(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return path.substr(path.rfind('/') + 1);  // npos + 1 = 0: all of it
}

std::string staged_names(const RunnerConfig& runner) {
  std::string names;
  for (const std::string& item : runner.stage)
    names += (names.empty() ? "" : ", ") + parse_stage_item(item).name;
  return names.empty() ? "nothing" : names;
}

/// Whether the text after the placeholder is empty or "/NAME" of a staged item, maybe with a
/// subpath.
bool names_staged(const RunnerConfig& runner, std::string_view rest, bool prefix) {
  if (rest.empty()) return !prefix;
  if (rest.front() != '/') return false;
  rest.remove_prefix(1);
  const std::string name(rest.substr(0, rest.find('/')));
  if (is_staged(runner, name)) return true;
  if (!prefix) return is_staged(runner, rest.substr(0, rest.find_first_of("/ ,:;=")));
  return name.size() == rest.size() && is_staged(runner, name + ".bin") &&
         is_staged(runner, name + ".idx");
}

class StageRules {
 public:
  explicit StageRules(const JobConfig& job) : job_(job) {}

  /// Text in which the placeholder may be anywhere; the name after it may end at one of " ,:;=".
  void anywhere(const std::string& key, std::string_view text) {
    if (job_.runner.stage.empty()) return;  // without staging the placeholder has no meaning here
    for (std::size_t at = text.find(kStagePlaceholder); at != text.npos;
         at = text.find(kStagePlaceholder, at + 1))
      if (!names_staged(job_.runner, text.substr(at + kStagePlaceholder.size()), false))
        return unknown(key, text);
  }
  /// A path that may begin with the placeholder.
  void path(const std::string& key, std::string_view text, bool prefix) {
    const std::size_t at = text.find(kStagePlaceholder);
    if (at == text.npos) return;
    if (at != 0 || text.find(kStagePlaceholder, 1) != text.npos)
      return broken(key,
                    fmt::format("{} has {{stage}} in the middle; it is allowed only at the start",
                                quote(shorten(text))));
    if (!names_staged(job_.runner, text.substr(kStagePlaceholder.size()), prefix))
      unknown(key, text);
  }
  /// A path that a job writes to, or that must exist outside of the stage: no placeholder allowed.
  void nowhere(const std::string& key, std::string_view text) {
    if (text.find(kStagePlaceholder) != text.npos)
      broken(key, "staged files are only read; write a path without {stage}");
  }
  void broken(const std::string& key, std::string message) {
    found_.push_back({"S3", {key}, std::move(message)});
  }
  std::vector<Violation> take() { return std::move(found_); }

 private:
  void unknown(const std::string& key, std::string_view text) {
    broken(key, fmt::format("{} names nothing that runner.stage has; it has {}",
                            quote(shorten(text)), staged_names(job_.runner)));
  }
  const JobConfig& job_;
  std::vector<Violation> found_;
};

}  // namespace

StageItem parse_stage_item(std::string_view text) {
  const std::size_t arrow = text.rfind(kArrow);
  if (arrow == text.npos) return {std::string(text), std::string(last_component(text))};
  return {std::string(text.substr(0, arrow)), std::string(text.substr(arrow + kArrow.size()))};
}

std::string check_stage_item(std::string_view text) {
  const StageItem item = parse_stage_item(text);
  if (item.path.empty()) return "names no file; write \"path\" or \"path -> name\"";
  if (item.name.empty() || item.name == "." || item.name == ".." || item.name == "~" ||
      item.name.find('/') != item.name.npos || item.name.size() > 255)
    return fmt::format("{} gives no name of one component; write \"path -> name\"",
                       quote(shorten(text)));
  return check_path(text);
}

bool is_staged(const RunnerConfig& runner, std::string_view name) {
  return std::ranges::any_of(
      runner.stage, [&](const std::string& item) { return parse_stage_item(item).name == name; });
}

std::vector<Violation> check_stage(const JobConfig& job) {
  std::vector<Violation> found;
  std::set<std::string> names;
  for (const std::string& text : job.runner.stage)
    if (const std::string name = parse_stage_item(text).name; !names.insert(name).second)
      found.push_back(
          {"S2",
           {"runner.stage"},
           fmt::format("two items are called {}; give one another name: \"path -> name\"",
                       quote(name))});
  StageRules rules(job);
  for (const std::string& argument : job.runner.program) rules.anywhere("runner.program", argument);
  for (const auto& [name, value] : job.runner.env) rules.anywhere("runner.env." + name, value);
  for (const DataPath& data : data_paths(job.data)) rules.path(data.key, data.path, data.is_prefix);
  rules.path("trainer.load_dir", job.trainer.load_dir, false);
  rules.path("trainer.load_weights_from", job.trainer.load_weights_from, false);
  rules.nowhere("trainer.save_dir", job.trainer.save_dir);
  rules.nowhere("runner.work_dir", job.runner.work_dir);
  rules.nowhere("profiler.profiler_output", job.profiler.profiler_output);
  std::vector<Violation> more = rules.take();
  found.insert(found.end(), more.begin(), more.end());
  return found;
}

std::string with_stage(std::string text, std::string_view folder) {
  for (std::size_t at = text.find(kStagePlaceholder); at != text.npos;
       at = text.find(kStagePlaceholder, at + folder.size()))
    text.replace(at, kStagePlaceholder.size(), folder);
  return text;
}

void resolve_stage(JobConfig& job, std::string_view folder) {
  for (auto* paths : {&job.data.data_prefixes, &job.data.chat_files,
                      &job.data.validation_data_prefixes, &job.data.validation_chat_files})
    for (std::string& path : *paths) path = with_stage(path, folder);
  for (auto& [name, path] : job.data.validation_sets) path = with_stage(path, folder);
  job.data.tokenizer = with_stage(job.data.tokenizer, folder);
  job.trainer.load_dir = with_stage(job.trainer.load_dir, folder);
  job.trainer.load_weights_from = with_stage(job.trainer.load_weights_from, folder);
}

}  // namespace sortie::config
