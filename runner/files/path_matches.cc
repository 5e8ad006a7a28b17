#include "runner/files/path_matches.h"

#include <dirent.h>
#include <fmt/core.h>
#include <fnmatch.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <ranges>

#include "common/files/entry_path.h"
#include "runner/files/user_path.h"

namespace sortie::runner {
namespace {

bool is_pattern(std::string_view text) {
  return text.find_first_of("*?[") != text.npos;
}

bool exists(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0;
}

std::string below(const std::string& folder, std::string_view name) {
  return folder.ends_with('/') ? folder + std::string(name) : fmt::format("{}/{}", folder, name);
}

std::vector<std::string> components_of(std::string_view path) {
  std::vector<std::string> out;
  while (!path.empty()) {
    const std::size_t end = std::min(path.find('/'), path.size());
    if (end > 0) out.emplace_back(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return out;
}

/// Matching names in the folder, sorted; empty if it can not be read.
std::vector<std::string> matches_in(const std::string& folder, const std::string& pattern) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(folder.c_str()), ::closedir);
  if (!dir) return names;
  while (const dirent* entry = ::readdir(dir.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != ".." && !name.starts_with(files::kPartPrefix) &&
        ::fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD) == 0)
      names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

PathMatches::PathMatches(std::vector<std::string> paths)
    : paths_(std::move(paths)), components_(paths_.size()), matched_(paths_.size()) {}

Result<bool> PathMatches::step() {
  if (!branches_.empty()) {
    Branch branch = std::move(branches_.back());
    branches_.pop_back();
    const std::size_t path = branch.path;
    SORTIE_TRY(follow(std::move(branch)));
    const bool last_of_path = branches_.empty() || branches_.back().path != path;
    if (last_of_path && !matched_[path])
      missing_.push_back({ErrorCode::not_found, fmt::format("{}: nothing matches", paths_[path])});
    return false;
  }
  if (begun_ == paths_.size()) return true;
  SORTIE_TRY(begin(begun_++));
  return false;
}

Result<> PathMatches::begin(std::size_t path) {
  SORTIE_ASSIGN_OR_RETURN(std::string full, user_path(paths_[path]));
  while (full.size() > 1 && full.ends_with('/')) full.pop_back();
  // An existing path is used literally, whatever characters it contains.
  if (is_pattern(paths_[path]) && !exists(full)) {
    components_[path] = components_of(full);
    branches_.push_back({path, 0, "/", ""});
    return {};
  }
  std::string name(files::name_of(full));
  if (auto checked = files::check_entry_name(name); !checked)
    return fail(ErrorCode::usage, paths_[path] +
                                      ": has no name of its own to be copied under; name a file"
                                      " or folder in it");
  struct stat info {};
  if (::stat(full.c_str(), &info) == 0) return found(path, std::move(full), std::move(name));
  missing_.push_back(os_error(errno, full, errno == ENOENT ? ErrorCode::not_found : ErrorCode::io));
  return {};
}

Result<> PathMatches::follow(Branch branch) {
  const std::vector<std::string>& components = components_[branch.path];
  // Plain names need no search in a folder.
  while (branch.next < components.size() && !is_pattern(components[branch.next])) {
    const std::string& plain = components[branch.next++];
    branch.folder = below(branch.folder, plain);
    if (!branch.name.empty()) branch.name += "/" + plain;
  }
  if (branch.next == components.size())
    return exists(branch.folder)
               ? found(branch.path, std::move(branch.folder), std::move(branch.name))
               : Result<>();
  const std::vector<std::string> names = matches_in(branch.folder, components[branch.next]);
  for (const std::string& name : std::views::reverse(names)) {
    if (branches_.size() + roots_.size() >= kMaxMatches)
      return fail(ErrorCode::usage, fmt::format("{}: more than {} matches; pull the folder above",
                                                paths_[branch.path], kMaxMatches));
    branches_.push_back({branch.path, branch.next + 1, below(branch.folder, name),
                         branch.name.empty() ? name : branch.name + "/" + name});
  }
  return {};
}

Result<> PathMatches::found(std::size_t path, std::string full, std::string name) {
  matched_[path] = true;
  const auto [place, fresh] = roots_.try_emplace(name, files::ScanRoot{full, name});
  if (!fresh && place->second.path != full)
    return fail(ErrorCode::usage,
                fmt::format("two of the paths are called '{}'; pull them one after the other into"
                            " different folders",
                            files::shown_path(name)));
  return {};
}

std::vector<files::ScanRoot> PathMatches::take_roots() {
  std::vector<files::ScanRoot> roots;
  std::map<std::string, files::ScanRoot> bare;
  for (auto& [name, root] : roots_) {
    // A match inside a matched folder is already part of that folder.
    bool inside = false;
    std::string folder = root.path;
    for (std::size_t end = name.rfind('/'); end != name.npos;
         end = end == 0 ? name.npos : name.rfind('/', end - 1)) {
      const std::string parent = name.substr(0, end);
      folder = folder.substr(0, folder.rfind('/'));
      inside = inside || roots_.contains(parent);
      bare.try_emplace(parent, files::ScanRoot{folder, parent, /*bare=*/true});
    }
    if (!inside) roots.push_back(root);
  }
  for (auto& [name, root] : bare)
    if (!roots_.contains(name)) roots.push_back(std::move(root));
  return roots;
}

}  // namespace sortie::runner
