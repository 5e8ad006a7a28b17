// Where an image to push comes from: an engine of this machine, and a folder for what it saves.
#pragma once

#include <string>

#include "common/base/result.h"
#include "common/container/engine_command.h"

namespace sortie::launcher {

/// A folder of this machine for as long as the command lasts; in $TMPDIR, else /var/tmp.
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

/// The client of an engine on this machine. ErrorCode::unsupported: there is none.
Result<container::Engine> client_here(const std::string& engine);

}  // namespace sortie::launcher
