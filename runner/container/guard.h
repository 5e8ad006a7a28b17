// The guard: a fork of the runner that acts only if the runner dies without dismissing it. It then
// waits for the keepers in the containers to end their ranks, has the engine remove the containers,
// and removes the run folder. No process inside a container can do that.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::runner::container {

class Guard {
 public:
  /// `commands` remove the containers and are run in order; argv[0] is a path.
  Result<> start(const std::string& run_folder,
                 const std::vector<std::vector<std::string>>& commands);
  /// The containers are gone: the guard exits without doing anything.
  void dismiss();
  pid_t pid() const { return pid_; }

 private:
  Fd control_;
  pid_t pid_ = -1;
};

}  // namespace sortie::runner::container
