// Whether the file of this runner is what its name says. A launcher installs it as
// "runner-<SHA-256 of its content>"; whoever finds it damaged sends it again.
#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"

namespace sortie::runner {

/// The hash in the name of this process's file; empty where no launcher has installed it, as for a
/// developer's "runner-test".
std::string installed_hash();

/// A file that was damaged on its disk is removed, and ErrorCode::data says so. `xxh3`: XXH3-64 of
/// the content in 16 lower-case hexadecimal digits, where the launcher has said it: it takes a
/// tenth of the time of SHA-256. A file that was read and found good within the last hour, in this
/// boot, and has not been written to since is not read again: it carries a note of that (an
/// extended attribute, where its file system has these).
Result<> check_content(std::string_view hash, const std::string& xxh3);

/// Tells whoever installs another build that this one is in use: the time of access of an installed
/// file becomes now. Best effort.
void mark_in_use();

}  // namespace sortie::runner
