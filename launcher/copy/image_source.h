// The source of an image to push: an engine of this machine, and a folder for the saved image.
#pragma once

#include <string>

#include "common/base/result.h"
#include "common/container/engine_command.h"

namespace sortie::launcher {

/// A temporary folder, removed by the destructor; in $TMPDIR, else /var/tmp.
class ScratchFolder {
 public:
  ScratchFolder() = default;
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  Result<> make();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Returns the client of an engine on this machine. ErrorCode::unsupported if there is none.
Result<container::Engine> client_here(const std::string& engine);

}  // namespace sortie::launcher
