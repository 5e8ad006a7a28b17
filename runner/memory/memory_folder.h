// The folder of a run in this host's memory, for checkpoints that outlive attempts
// (trainer.memory_checkpoint_interval): /dev/shm/sortie-UID/memory-RUN-HOST, 0700.
//
// It is kept by a holder: a runner of its own, on a connection that the launcher has open as long
// as the run lasts. The holder locks the folder as long as it lives and removes it when the run has
// ended or its launcher is gone. Who comes later for the same run takes the folder over with what
// is in it; the earlier one then leaves it alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::runner {

/// `host`: the host's name in the plan, so that names which share a machine have folders of their
/// own.
std::string memory_folder_path(const std::string& run_id, const std::string& host);

class MemoryHolder {
 public:
  /// Makes the folder or takes it over, and removes those of other runs that no process holds.
  /// ErrorCode::io: no memory file system there, or the place is not ours. ErrorCode::runner: a
  /// launcher of a higher epoch has it.
  static Result<MemoryHolder> take(const std::string& run_id, const std::string& host,
                                   std::uint32_t epoch);

  const std::string& path() const { return path_; }
  /// Nobody has taken it over or removed it.
  bool is_ours() const;
  /// Removes the folder, unless another holder has it by now. What ranks have mapped is freed when
  /// they end.
  void remove();

 private:
  std::string path_, token_;
  Fd folder_;
};

/// Removes the memory of a run that no holder keeps any more; what one keeps is left to it.
void remove_unheld_memory(const std::string& run_id);

/// Of the path of an open file or folder (as /proc tells it): whether it is memory of that run.
bool is_memory_of_run(std::string_view path, const std::string& run_id);

/// Lets another user of a container write there. On the host the folder above it stays closed.
Result<> open_memory_to_others(const std::string& folder);

}  // namespace sortie::runner
