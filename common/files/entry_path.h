// The one grammar of names that travel: no peer can name a place outside the folder of its
// transfer.
#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"

namespace sortie::files {

/// What transfers call their unfinished files; no entry may have such a name.
inline constexpr std::string_view kPartPrefix = ".sortie-part-";

/// One component: 1 to 255 bytes, no '/', no NUL, neither "." nor "..", not that of a part.
Result<> check_entry_name(std::string_view name);

/// Components with one '/' between them; at most 4000 bytes and 200 components.
Result<> check_entry_path(std::string_view path);

/// Whether a symlink at `path`, below the root of a transfer, leads to a place below that root,
/// whatever other links of the transfer lie on its way: ".." may only stand at its beginning, where
/// it is known which folder it leaves.
bool stays_inside(std::string_view path, std::string_view link_target);

/// The order of a manifest: by components, so that a folder is followed by what is in it.
bool entry_path_less(std::string_view a, std::string_view b);

/// The path before the last '/'; "" for a name alone.
std::string_view parent_of(std::string_view path);
std::string_view name_of(std::string_view path);

/// The code of a RunnerError that names a path of a pull which nothing comes of.
inline constexpr std::string_view kMissingPath = "missing_path";

/// For messages: printable, at most 200 bytes of the path.
std::string shown_path(std::string_view path);

}  // namespace sortie::files
