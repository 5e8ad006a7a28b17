// The grammar of names in transfers. It ensures that a peer can not name a place outside the folder
// of its transfer.
#pragma once

#include <string>
#include <string_view>

#include "common/base/result.h"

namespace sortie::files {

/// Prefix of a transfer's unfinished files. No entry may have such a name.
inline constexpr std::string_view kPartPrefix = ".sortie-part-";

/// Accepts one component: 1 to 255 bytes, no '/', no NUL, not "." or "..", not a part's name.
Result<> check_entry_name(std::string_view name);

/// Accepts components separated by one '/' each; at most 4000 bytes and 200 components.
Result<> check_entry_path(std::string_view path);

/// Whether a symlink at `path`, relative to the root of a transfer, leads to a place below that
/// root, whatever other symlinks of the transfer are on its way. So ".." is allowed only at the
/// beginning of the target, where it is known which folder it leaves.
bool stays_inside(std::string_view path, std::string_view link_target);

/// The order of a manifest: by components, so that a folder is directly followed by its content.
bool entry_path_less(std::string_view a, std::string_view b);

/// The path before the last '/'; "" if there is none.
std::string_view parent_of(std::string_view path);
std::string_view name_of(std::string_view path);

/// Begins the code of a RunnerError about one path of a pull that can not be sent; the name of the
/// ErrorCode follows: "missing_path:io".
inline constexpr std::string_view kMissingPath = "missing_path:";

/// Text for messages: printable, at most 200 bytes of the path.
std::string shown_path(std::string_view path);

}  // namespace sortie::files
