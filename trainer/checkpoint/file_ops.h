// The system calls of a save. Each passes a fault point, so that tests can stop a save, make it
// fail or kill it at every boundary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::trainer::file_ops {

// All fail with ErrorCode::io and a message that names the operation and the path.
Result<> make_dir(const std::filesystem::path& path);
/// Creates the file, which must not exist yet; a symbolic link in its place is refused.
Result<Fd> create_file(const std::filesystem::path& path);
/// Writes all bytes. If the file bypasses the page cache (set_direct) and the disk refuses a write,
/// the rest is written through the cache: after a short write it does not begin at a block.
Result<> write_all(const Fd& file, std::span<const std::byte> bytes,
                   const std::filesystem::path& path);
/// Sets whether writes bypass the page cache (O_DIRECT); returns false if the file system refuses.
/// They must then be of whole blocks, from memory that is aligned to blocks.
bool set_direct(const Fd& file, bool direct);
Result<> sync_file(const Fd& file, const std::filesystem::path& path);
Result<> close_file(Fd file, const std::filesystem::path& path);
Result<> rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
/// Renames a file unless something has the name `to`; returns false then, without any change. Of
/// several processes that do so at once, one gets true. Where the file system has no such rename
/// (NFS), a hard link is made, and `from` is removed.
Result<bool> rename_if_absent(const std::filesystem::path& from, const std::filesystem::path& to);
/// Exchanges two existing folders atomically. Returns false, without any change, if the file system
/// does not support that (NFS).
Result<bool> exchange_paths(const std::filesystem::path& a, const std::filesystem::path& b);
Result<> sync_dir(const std::filesystem::path& path);
/// Reads until the buffer is full or the file ends; returns the number of bytes. An unreadable
/// sector is an error here, while it ends a process that has mapped the file. Not a fault point.
Result<std::size_t> read_at(const Fd& file, std::uint64_t offset, std::span<std::byte> bytes,
                            const std::filesystem::path& path);
/// Removes a folder with its contents; what is already gone is not an error.
Result<> remove_tree(const std::filesystem::path& path);

/// Sets the fault to inject, as SORTIE_FAULT does for a whole process (read at the first
/// operation): "checkpoint:N:ACTION" acts at the N-th operation from now (from 1). ACTION: kill
/// (SIGKILL to this process), stop (SIGSTOP to it), enospc, eio (that error), eintr (interrupted
/// once), short (a write of half the bytes), delay (0.1 s). "checkpoint:noexchange": folders cannot
/// be exchanged, and rename_if_absent() makes a link, as on NFS. "checkpoint:noread": every
/// read_at() fails with EIO. Both alone, or with others, separated by commas. Empty = none.
/// ErrorCode::usage for any other text.
Result<> set_fault(std::string_view specification);
/// Number of operations since set_fault() or the start of the process.
std::uint64_t operations();

/// An operation that has succeeded.
struct Operation {
  enum class Kind { make_dir, create, write, sync_file, rename, exchange, sync_dir, remove };
  Kind kind{};
  std::filesystem::path path{};
  std::filesystem::path to{};          // rename, exchange
  std::span<const std::byte> bytes{};  // write: the appended bytes
};
/// Sets a function that is called after every operation, one call at a time; empty = none. Call
/// while no save is under way. For tests that model what a power loss leaves.
void set_observer(std::function<void(const Operation&)> observer);

}  // namespace sortie::trainer::file_ops
