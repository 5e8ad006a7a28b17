// The system calls that a save is made of. Each passes a fault point, so that tests can stop,
// starve or break a save at every boundary.
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
/// The file must not exist yet; a symbolic link in its place is refused.
Result<Fd> create_file(const std::filesystem::path& path);
/// A file past the cache (set_direct) goes on through it from where the disk refuses a write: what
/// a short one leaves does not begin at a block.
Result<> write_all(const Fd& file, std::span<const std::byte> bytes,
                   const std::filesystem::path& path);
/// Whether writes go past the page cache (O_DIRECT); false where the file system refuses. Writes
/// must then be of whole blocks, from memory that is aligned to blocks.
bool set_direct(const Fd& file, bool direct);
Result<> sync_file(const Fd& file, const std::filesystem::path& path);
Result<> close_file(Fd file, const std::filesystem::path& path);
Result<> rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
/// Swaps two existing folders in one step. False where the file system has no such call (NFS):
/// nothing has changed then.
Result<bool> exchange_paths(const std::filesystem::path& a, const std::filesystem::path& b);
Result<> sync_dir(const std::filesystem::path& path);
/// Removes a folder with what is in it; what is already gone is fine.
Result<> remove_tree(const std::filesystem::path& path);

/// Sets the fault to inject, as SORTIE_FAULT does for a whole process (read at the first
/// operation): "checkpoint:N:ACTION" acts at the N-th operation from now (from 1). ACTION: kill
/// (SIGKILL to this process), stop (SIGSTOP to it), enospc, eio (that error), eintr (interrupted
/// once), short (a write of half the bytes), delay (0.1 s). "checkpoint:noexchange": no folders are
/// exchanged, as on NFS; alone, or behind the other and a comma. Empty = none. Fails on any other
/// text.
Result<> set_fault(std::string_view specification);
/// Operations since set_fault or the start.
std::uint64_t operations();

/// An operation that has succeeded.
struct Operation {
  enum class Kind { make_dir, create, write, sync_file, rename, exchange, sync_dir, remove };
  Kind kind{};
  std::filesystem::path path{};
  std::filesystem::path to{};          // rename, exchange
  std::span<const std::byte> bytes{};  // write: appended
};
/// Calls `observer` after every operation, one at a time; empty = none. While no save is under way.
/// For models of what a power loss leaves.
void set_observer(std::function<void(const Operation&)> observer);

}  // namespace sortie::trainer::file_ops
