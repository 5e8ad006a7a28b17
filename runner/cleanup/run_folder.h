// The folder of one run on one host, 0700: config, sockets, PMIx files. The runner and its keepers
// hold it (folder_lock.h) as long as one of them lives; one that nobody holds is removed by the
// next run.
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
  /// Makes "<base>/sortie-<uid>/<name>" and removes siblings that nobody holds. The base is
  /// XDG_RUNTIME_DIR where it is a folder of ours, else /tmp. Errors: the folder is not ours (a
  /// planted link), or another runner of the same run, attempt and node is alive.
  static Result<RunFolder> make(const std::string& name);

  RunFolder() = default;
  RunFolder(RunFolder&&) = default;
  RunFolder& operator=(RunFolder&&) = default;

  const std::string& path() const { return path_; }
  Result<> write(const std::string& name, std::string_view content) const;
  Result<std::string> make_subfolder(const std::string& name) const;
  /// Makes everything in it as young as now: cleaners that know no locks go by age.
  void touch() const;
  void remove();

 private:
  std::string path_;
  std::optional<FolderLock> lock_;
};

/// The folder of that name, where a runner of this user has it. ErrorCode::lost: there is none; io:
/// a living process has it open, but it was removed.
Result<std::string> find_run_folder(const std::string& name);
/// Whether a process of this user may hold the folder of that name, in whichever base.
bool run_folder_may_be_held(const std::string& name);
/// The folder in which run folders are made, "" where it can not be; and what is in it.
struct RunFolders {
  std::string base;
  std::string error;                // why there is no base
  std::vector<std::string> held;    // names: runs that are alive
  std::vector<std::string> refuse;  // names: nobody holds them; the next run removes them
};
RunFolders look_at_run_folders();

/// Folder name for a run; long run ids are cut and told apart by a hash, because socket paths are
/// short.
std::string run_folder_name(const std::string& run_id, std::uint32_t attempt,
                            std::uint32_t node_rank);

/// Where run folders are: "/tmp/sortie-1000".
std::string run_folder_base();
/// Whether `name` is that of a folder of this run, of whatever attempt and node.
bool is_run_folder_name(std::string_view name, const std::string& run_id);

}  // namespace sortie::runner
