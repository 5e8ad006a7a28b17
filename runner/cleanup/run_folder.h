// The folder of one run on one host, 0700: config, sockets, PMIx files. The runner and its keepers
// hold it (folder_lock.h) while one of them lives. The next run removes folders that no process
// holds.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "runner/cleanup/folder_lock.h"

namespace sortie::runner {

class RunFolder {
 public:
  /// Creates "<base>/sortie-<uid>/<name>" and removes siblings that no process holds. The base is
  /// XDG_RUNTIME_DIR if that is a private folder of this user, else /tmp. Errors: the folder is not
  /// ours (a planted link), or another runner of the same run, attempt and node is alive.
  static Result<RunFolder> make(const std::string& name);

  RunFolder() = default;
  RunFolder(RunFolder&&) = default;
  RunFolder& operator=(RunFolder&&) = default;

  const std::string& path() const { return path_; }
  Result<> write(const std::string& name, std::string_view content) const;
  Result<std::string> make_subfolder(const std::string& name) const;
  /// Records that no launcher is connected and the ranks of `run_id` are held until `until_ms`
  /// (Unix time in milliseconds), for look_at_run_folders().
  Result<> mark_held(const std::string& run_id, std::uint64_t until_ms) const;
  /// Removes this record: a launcher is connected again.
  void unmark_held() const;
  /// Sets the times of everything in it to now, for cleaners that ignore locks and go by age.
  void touch() const;
  void remove();

 private:
  std::string path_;
  std::optional<FolderLock> lock_;
};

/// Finds the folder of that name in the possible bases. ErrorCode::lost: there is none.
/// ErrorCode::io: it was removed while a living process has it open.
Result<std::string> find_run_folder(const std::string& name);
/// Whether a process of this user may hold the folder of that name, in any base.
bool run_folder_may_be_held(const std::string& name);
/// A living run without a launcher.
struct HeldRun {
  std::string run_id;
  std::uint64_t until_ms = 0;  // Unix time at which its runner ends the ranks
};
/// The base of the run folders, "" if it can not be created, and its contents.
struct RunFolders {
  std::string base;
  std::string error;                      // why there is no base
  std::vector<std::string> held;          // names of folders that living runs hold
  std::vector<HeldRun> without_launcher;  // those of them to which no launcher is connected
  std::vector<std::string> refuse;        // names of unheld folders; the next run removes them
};
RunFolders look_at_run_folders();

/// Folder name of a run. Long run ids are truncated and made unique by a hash, because socket paths
/// are short.
std::string run_folder_name(const std::string& run_id, std::uint32_t attempt,
                            std::uint32_t node_rank);

/// The base of the run folders, such as "/tmp/sortie-1000".
std::string run_folder_base();
/// Whether `name` is a folder of this run, of any attempt and node.
bool is_run_folder_name(std::string_view name, const std::string& run_id);

}  // namespace sortie::runner
