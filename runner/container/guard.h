// The guard: a fork of the runner that does nothing until the runner is gone without a farewell.
// Then it waits for the keepers in the containers to end their ranks, has the engine remove the
// containers, and removes the run folder. Inside a container nobody can do that.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::runner::container {

class Guard {
 public:
  /// `commands`: what removes the containers, one after the other; argv[0] is a path.
  Result<> start(const std::string& run_folder,
                 const std::vector<std::vector<std::string>>& commands);
  /// The containers are gone; the guard ends, having done nothing.
  void dismiss();
  pid_t pid() const { return pid_; }

 private:
  Fd control_;
  pid_t pid_ = -1;
};

}  // namespace sortie::runner::container
