#include "runner/files/stage_pruner.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <utility>
#include <vector>

#include "common/base/atomic_file.h"
#include "common/base/log.h"
#include "runner/files/stage_files.h"

namespace sortie::runner {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLock = ".lock", kPart = ".part-";

/// Bytes that this user may still write; without end if the file system does not tell.
std::uint64_t free_bytes(const std::string& folder) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) return UINT64_MAX;
  return std::uint64_t{info.f_bavail} * info.f_frsize;
}

}  // namespace

StagePruner StagePruner::of_unused(const std::string& base, const std::string& own) {
  struct Found {
    Tree tree;
    timespec used{};
  };
  std::vector<Found> found;
  StagePruner pruner;
  pruner.base_ = base;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(base, error)) {
    const std::string name = file.path().filename().string();
    struct stat info {};
    if (!name.ends_with(kLock) || !is_stage_key(name.substr(0, name.size() - kLock.size())) ||
        ::lstat(file.path().c_str(), &info) != 0)
      continue;
    const std::string key = name.substr(0, name.size() - kLock.size());
    Tree tree{base + "/" + key, 0};
    if (const auto text = read_file(file.path(), 64))
      tree.bytes = std::strtoull(text->c_str(), nullptr, 10);
    pruner.total_ += tree.bytes;
    if (key != own) found.push_back({std::move(tree), info.st_mtim});
  }
  std::ranges::sort(found, {},
                    [](const Found& one) { return std::pair(one.used.tv_sec, one.used.tv_nsec); });
  for (Found& one : found) pruner.trees_.push_back(std::move(one.tree));
  return pruner;
}

StagePruner StagePruner::of_trees(const std::string& base, const std::string& own,
                                  std::uint64_t limit) {
  StagePruner pruner = of_unused(base, own);
  pruner.excess_ = pruner.total_ > limit ? pruner.total_ - limit : 0;
  return pruner;
}

StagePruner StagePruner::for_room(const std::string& base, const std::string& own,
                                  std::uint64_t room) {
  StagePruner pruner;
  if (free_bytes(base) < room) pruner = of_unused(base, own);
  pruner.room_ = room;
  return pruner;
}

StagePruner StagePruner::of_old_parts(const std::string& base, std::chrono::seconds age) {
  StagePruner pruner;
  pruner.locked_ = false;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(base, error)) {
    const std::string name = entry.path().filename().string();
    const std::size_t part = name.find(kPart);
    struct stat info {};
    if (part == name.npos || !is_stage_key(name.substr(0, part)) ||
        ::lstat(entry.path().c_str(), &info) != 0 || info.st_ctime > ::time(nullptr) - age.count())
      continue;
    pruner.trees_.push_back({entry.path().string(), 1});
    ++pruner.excess_;
  }
  return pruner;
}

bool StagePruner::enough() const {
  return room_ > 0 ? free_bytes(base_) >= room_ : excess_ == 0;
}

/// Begins to remove the next tree that is not in use. Returns false if there is none.
bool StagePruner::take_next() {
  while (!trees_.empty() && !enough()) {
    const Tree tree = std::move(trees_.front());
    trees_.pop_front();
    removing_ = tree.path;
    if (locked_) {
      const std::string path = tree.path + std::string(kLock);
      lock_ = open_stage_lock(path);
      if (take_stage_lock(lock_, LOCK_EX, path) != FileLock::taken) continue;
    }
    log::info("stage cache: removes {} ({} bytes)", tree.path, tree.bytes);
    excess_ -= std::min(excess_, tree.bytes);
    return true;
  }
  removing_.clear();
  lock_.reset();
  return false;
}

bool StagePruner::step() {
  if (removing_.empty()) return !take_next();
  if (!locked_) {
    if (remove_some(removing_)) removing_.clear();
    return false;
  }
  // The part first, which takes the place of the tree: an incomplete tree must not be found under
  // its final name.
  const std::string part = removing_ + ".part";
  if (!remove_some(part)) return false;
  std::error_code error;
  fs::rename(removing_, part, error);
  if (!error) return false;
  // What can not be removed keeps its lock, and so counts.
  if (!fs::exists(removing_, error) && !fs::exists(part, error))
    fs::remove(removing_ + std::string(kLock), error);
  lock_.reset();
  removing_.clear();
  return false;
}

}  // namespace sortie::runner
