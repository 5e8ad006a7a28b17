// Small file operations of a transfer, each relative to an open folder and following no symlink.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::files {

/// lstat of `name` in `folder`; nothing when it does not exist.
std::optional<struct stat> look_at(int folder, std::string_view name);
/// A regular file for reading; no descriptor when it is none.
Fd open_existing(int folder, std::string_view name);
/// An unfinished file, for reading and writing.
struct Part {
  Fd fd;
  bool locked = false;  // against other transfers; false where the file system has no locks
};
/// The unfinished file of `name`: opened or made (0600), and locked. Error: another transfer has
/// it.
Result<Part> open_part(int folder, std::string_view name);
std::string part_name(std::string_view name);
void remove_part(int folder, std::string_view name);

/// Reads exactly `length` bytes into `buffer`; false when there are not as many.
bool read_exactly(int fd, std::string& buffer, std::uint64_t offset, std::uint64_t length);
/// Writes `bytes` at `offset`, with holes for blocks that are all zero. What the file had there is
/// gone; its size is the caller's to set.
Result<> write_sparse(int fd, std::string_view bytes, std::uint64_t offset);

/// Makes the folder, or sees that it is one that can be written to.
Result<> make_folder(int parent, std::string_view name);
Result<> make_symlink(int folder, std::string_view name, const std::string& target, bool& changed);
/// The mode of a folder or file that is there, when it differs.
Result<> set_mode(int folder, std::string_view name, unsigned mode, bool& changed);
/// fsync of a folder by its name.
Result<> sync_folder(int parent, std::string_view name);

}  // namespace sortie::files
