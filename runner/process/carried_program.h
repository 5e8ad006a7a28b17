// Programs that are embedded in the runner's own file: turns their bytes into a file that can be
// executed.
#pragma once

#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::runner {

/// Returns a path to exec. Normally this is an anonymous file in memory, which `holder` keeps open
/// (HeldSpec::program_fd) and which leaves nothing on disk. On systems that forbid execution from
/// memory (vm.memfd_noexec) it is the file `name` in `folder`, which is removed with the folder.
Result<std::string> unpack_program(const char* name, std::string_view bytes,
                                   const std::string& folder, Fd& holder);

}  // namespace sortie::runner
