// Checks that this runner's file is intact. A launcher installs it as "runner-<SHA-256 of its
// content>", and sends it again if it is found damaged.
#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"

namespace sortie::runner {

/// The hash in the name of this process's file; empty if no launcher installed it. A developer's
/// "runner-test" yields "test".
std::string installed_hash();

/// Checks the content of this process's file. Removes a file that was damaged on its disk and fails
/// with ErrorCode::data. `xxh3`: XXH3-64 of the content in 16 lower-case hexadecimal digits, if the
/// launcher sent it: checking it takes a tenth of the time of SHA-256. A file that was verified
/// within the last hour of this boot and has not been modified since is not read again: an extended
/// attribute records the check, if the file system supports these. No-op if `hash` is no SHA-256.
Result<> check_content(std::string_view hash, const std::string& xxh3);

/// Marks this build as in use, for a launcher that installs another one: sets the access time of an
/// installed file to now. Best effort.
void mark_in_use();

}  // namespace sortie::runner
