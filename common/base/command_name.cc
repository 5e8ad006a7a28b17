#include "common/base/command_name.h"

#include <cstdlib>
#include <filesystem>

#include "common/base/shell_text.h"

namespace sortie {
namespace fs = std::filesystem;

namespace {

/// Path of the program that a shell would start for `name`; empty if PATH has none.
fs::path found_on_path(const std::string& name) {
  const char* variable = std::getenv("PATH");
  std::string_view folders = variable ? variable : "";
  std::error_code ignored;
  while (!folders.empty()) {
    const std::size_t end = std::min(folders.find(':'), folders.size());
    fs::path candidate = fs::path(folders.substr(0, end)) / name;
    if (fs::is_regular_file(candidate, ignored)) return candidate;
    folders.remove_prefix(std::min(end + 1, folders.size()));
  }
  return {};
}

}  // namespace

std::string command_name() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) return "sortie";
  const fs::path found = found_on_path(self.filename().string());
  if (!found.empty() && fs::equivalent(found, self, error)) return self.filename().string();
  const fs::path near = self.lexically_relative(fs::current_path(error));
  if (error || near.empty() || *near.begin() == "..") return self.string();
  return near.has_parent_path() ? near.string() : "./" + near.string();
}

std::string command_line(const std::vector<std::string>& words) {
  return shell_word(command_name()) + (words.empty() ? "" : " " + shell_text(words));
}

}  // namespace sortie
