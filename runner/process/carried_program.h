// Programs that are carried inside the runner's own file, made into something that can be started.
#pragma once

#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::runner {

/// A path to exec: an anonymous file in memory, which `holder` keeps open (HeldSpec::program_fd)
/// and which leaves nothing on any disk; or a file `name` in `folder`, which is removed with it, on
/// systems that forbid running from memory (vm.memfd_noexec).
Result<std::string> unpack_program(const char* name, std::string_view bytes,
                                   const std::string& folder, Fd& holder);

}  // namespace sortie::runner
