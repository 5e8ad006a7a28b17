// Small file operations of a transfer. Each is relative to an open folder and follows no symlink.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::files {

/// lstat of `name` in `folder`; nullopt if that fails.
std::optional<struct stat> look_at(int folder, std::string_view name);
/// Opens a regular file for reading; returns an empty Fd if there is none.
Fd open_existing(int folder, std::string_view name);
/// An unfinished file, open for reading and writing.
struct Part {
  Fd fd;
  bool locked = false;  // against other transfers; false if the file system has no locks
};
/// Opens or creates (0600) the unfinished file of `name`, and locks it. Fails if another transfer
/// holds the lock.
Result<Part> open_part(int folder, std::string_view name);
std::string part_name(std::string_view name);
void remove_part(int folder, std::string_view name);

/// Reads exactly `length` bytes into `buffer`; false if the file has fewer.
bool read_exactly(int fd, std::string& buffer, std::uint64_t offset, std::uint64_t length);
/// Writes `bytes` at `offset`, with holes for blocks that are all zero. Replaces old data. The
/// caller sets the file's size.
Result<> write_sparse(int fd, std::string_view bytes, std::uint64_t offset);

/// Creates the folder if it is missing. Fails if the name is a file or symlink. Makes the folder
/// writable if this user owns it.
Result<> make_folder(int parent, std::string_view name);
Result<> make_symlink(int folder, std::string_view name, const std::string& target, bool& changed);
/// Sets the mode of an existing folder or file if it differs.
Result<> set_mode(int folder, std::string_view name, unsigned mode, bool& changed);
/// fsync of a folder, by name.
Result<> sync_folder(int parent, std::string_view name);

}  // namespace sortie::files
