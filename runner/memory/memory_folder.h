// The folder of a run in this host's memory, for checkpoints that outlive attempts
// (trainer.memory_checkpoint_interval): /dev/shm/sortie-UID/memory-RUN-HOST, 0700.
//
// A holder keeps it: a separate runner, on a connection that the launcher keeps open for the whole
// run. The holder locks the folder while it lives, and removes it when the run has ended or its
// launcher is gone. A later holder for the same run takes the folder over with its contents; the
// earlier one then leaves it alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::runner {

/// Path of the folder. `host`: the host's name in the plan, so that names which share a machine
/// have separate folders.
std::string memory_folder_path(const std::string& run_id, const std::string& host);

class MemoryHolder {
 public:
  /// Creates the folder or takes it over, and removes those of other runs that no process holds.
  /// ErrorCode::io: no memory file system is mounted, or the folder above is not private to this
  /// user. ErrorCode::runner: a launcher of a higher epoch holds it.
  static Result<MemoryHolder> take(const std::string& run_id, const std::string& host,
                                   std::uint32_t epoch);

  const std::string& path() const { return path_; }
  /// Whether the folder still exists and no other holder has taken it over.
  bool is_ours() const;
  /// Removes the folder, unless another holder has taken it over. Memory that ranks have mapped is
  /// freed when they end.
  void remove();

 private:
  std::string path_, token_;
  Fd folder_;
};

/// Removes the folders of a run that no holder keeps.
void remove_unheld_memory(const std::string& run_id);

/// Whether `path`, of an open file or folder as in /proc, belongs to the memory of that run.
bool is_memory_of_run(std::string_view path, const std::string& run_id);

/// Lets a container's other user write there. The folder above stays private on the host.
Result<> open_memory_to_others(const std::string& folder);

}  // namespace sortie::runner
