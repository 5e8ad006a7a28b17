#include "common/files/tree_file.h"
#include "common/base/hex.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "common/base/file_lock.h"
#include "common/files/entry_path.h"
#include "common/files/piece.h"

namespace sortie::files {
namespace {

constexpr int kLookFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

}  // namespace

std::optional<struct stat> look_at(int folder, std::string_view name) {
  struct stat info {};
  if (::fstatat(folder, std::string(name).c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0)
    return std::nullopt;
  return info;
}

Fd open_existing(int folder, std::string_view name) {
  Fd fd(::openat(folder, std::string(name).c_str(), kLookFlags));
  struct stat info {};
  if (fd && (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode))) fd.reset();
  return fd;
}

std::string part_name(std::string_view name) {
  return std::string(kPartPrefix) + hex(hash_bytes(name).substr(0, 12));
}

Result<Part> open_part(int folder, std::string_view name) {
  Part part;
  Fd& fd = part.fd;
  const std::string file = part_name(name);
  const auto open = [&] {
    fd.reset(::openat(folder, file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
                      0600));
  };
  open();
  if (!fd && errno == EACCES) {
    // A transfer that ended between setting the mode and renaming leaves a part that may be
    // read-only. One that another transfer still holds stays as it is.
    const bool free = [&] {
      const Fd old = open_existing(folder, file);
      return old && try_lock_file(old.get(), LOCK_EX) != FileLock::held &&
             ::fchmod(old.get(), 0600) == 0;
    }();  // closes it: its lock would conflict with that of the second open
    errno = EACCES;
    if (free) open();
  }
  if (!fd) return std::unexpected(os_error(errno, shown_path(name)));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != ::geteuid())
    return fail(ErrorCode::io,
                fmt::format("{} is no file of this user; remove it", part_name(name)));
  const FileLock lock = try_lock_file(fd.get(), LOCK_EX);
  if (lock == FileLock::failed) return std::unexpected(os_error(errno, "lock " + part_name(name)));
  if (lock == FileLock::held)
    return fail(ErrorCode::io,
                shown_path(name) + ": another transfer is writing it; wait for its end");
  // Between open and lock, the previous owner may have renamed it to its final name.
  struct stat now {};
  if (::fstat(fd.get(), &now) != 0 || now.st_nlink == 0 || !look_at(folder, part_name(name)) ||
      look_at(folder, part_name(name))->st_ino != now.st_ino)
    return fail(ErrorCode::io,
                shown_path(name) + ": another transfer has just written it; try again");
  part.locked = lock == FileLock::taken;
  return part;
}

void remove_part(int folder, std::string_view name) {
  const std::string part = part_name(name);
  const Fd fd(::openat(folder, part.c_str(), kLookFlags));
  if (fd && lock_file_or_none(fd.get(), LOCK_EX)) ::unlinkat(folder, part.c_str(), 0);
}

bool read_exactly(int fd, std::string& buffer, std::uint64_t offset, std::uint64_t length) {
  buffer.resize(static_cast<std::size_t>(length));
  for (std::size_t done = 0; done < buffer.size();) {
    const ssize_t count =
        ::pread(fd, buffer.data() + done, buffer.size() - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<std::size_t>(count);
  }
  return true;
}

namespace {

/// Block size of most file systems. A smaller hole would save nothing.
constexpr std::size_t kBlockBytes = 4096;
constexpr char kZeros[kBlockBytes] = {};

/// Whether the first block of `bytes` is all zero.
bool begins_with_hole(std::string_view bytes) {
  const std::size_t length = std::min(bytes.size(), kBlockBytes);
  return bytes[0] == 0 && std::memcmp(bytes.data(), kZeros, length) == 0;
}

/// Bytes of the whole blocks at the front that are like the first one: all zero, or not.
std::size_t run_length(std::string_view bytes, bool hole) {
  std::size_t length = 0;
  while (length < bytes.size() && begins_with_hole(bytes.substr(length)) == hole)
    length += std::min(kBlockBytes, bytes.size() - length);
  return length;
}

/// Smaller writes are left to the kernel, which joins those of many small files.
constexpr off_t kWorthWriteback = 256 << 10;

/// Whether the range contains data; also true if the file system does not know.
bool may_have_data(int fd, off_t offset, std::size_t length) {
  const off_t data = ::lseek(fd, offset, SEEK_DATA);
  return data < 0 ? errno != ENXIO : data < offset + static_cast<off_t>(length);
}

Result<> write_all(int fd, std::string_view bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::unexpected(os_error(errno, "write"));
    bytes.remove_prefix(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return {};
}

/// Replaces data of an earlier transfer by zeros.
Result<> make_hole(int fd, std::string_view zeros, std::uint64_t offset) {
  const auto begin = static_cast<off_t>(offset);
  const auto length = static_cast<off_t>(zeros.size());
  if (!may_have_data(fd, begin, zeros.size()) ||
      ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, length) == 0)
    return {};
  return write_all(fd, zeros, offset);
}

}  // namespace

Result<> write_sparse(int fd, std::string_view bytes, std::uint64_t offset) {
  const auto begin = static_cast<off_t>(offset);
  const auto length = static_cast<off_t>(bytes.size());
  while (!bytes.empty()) {
    const bool hole = begins_with_hole(bytes);
    const std::string_view run = bytes.substr(0, run_length(bytes, hole));
    SORTIE_TRY(hole ? make_hole(fd, run, offset) : write_all(fd, run, offset));
    bytes.remove_prefix(run.size());
    offset += run.size();
  }
  // Starts writeback now, so that the final fsync has less to do. A hint: fsync reports errors.
  if (length >= kWorthWriteback) ::sync_file_range(fd, begin, length, SYNC_FILE_RANGE_WRITE);
  return {};
}

Result<> make_folder(int parent, std::string_view name) {
  const std::string path(name);
  if (::mkdirat(parent, path.c_str(), 0700) == 0) return {};
  if (errno != EEXIST) return std::unexpected(os_error(errno, "mkdir"));
  const Fd fd(::openat(parent, path.c_str(), kLookFlags | O_DIRECTORY));
  if (!fd && (errno == ENOTDIR || errno == ELOOP))
    return fail(ErrorCode::io, "is a file or symlink, and a folder is needed; remove it");
  struct stat info {};
  if (fd && ::fstat(fd.get(), &info) == 0 && info.st_uid == ::geteuid() &&
      (info.st_mode & 0700) != 0700 && ::fchmod(fd.get(), (info.st_mode & 0777) | 0700) != 0)
    return std::unexpected(os_error(errno, "chmod"));
  return {};  // if it is still not writable, the first write in it fails
}

Result<> make_symlink(int folder, std::string_view name, const std::string& target, bool& changed) {
  const std::string path(name);
  std::array<char, 4096> now{};
  const ssize_t length = ::readlinkat(folder, path.c_str(), now.data(), now.size());
  if (length >= 0 && std::string_view(now.data(), static_cast<std::size_t>(length)) == target)
    return {};
  changed = true;
  const std::string part = part_name(name);
  ::unlinkat(folder, part.c_str(), 0);
  if (::symlinkat(target.c_str(), folder, part.c_str()) != 0)
    return std::unexpected(os_error(errno, "symlink"));
  if (::renameat(folder, part.c_str(), folder, path.c_str()) == 0) return {};
  const int error = errno;
  ::unlinkat(folder, part.c_str(), 0);
  return std::unexpected(os_error(error, "rename"));
}

Result<> set_mode(int folder, std::string_view name, unsigned mode, bool& changed) {
  const std::optional<struct stat> info = look_at(folder, name);
  if (!info) return fail(ErrorCode::io, "went away");
  if ((info->st_mode & 07777) == mode) return {};
  changed = true;
  const Fd fd(::openat(folder, std::string(name).c_str(), kLookFlags));
  if (!fd || ::fchmod(fd.get(), mode) != 0) return std::unexpected(os_error(errno, "chmod"));
  return {};
}

Result<> sync_folder(int parent, std::string_view name) {
  const Fd fd(::openat(parent, std::string(name).c_str(), kLookFlags | O_DIRECTORY));
  if (!fd) return {};  // a folder that is writable but not readable can not be synced
  // Some file systems can not sync a folder (EINVAL); their renames are ordered anyway.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return std::unexpected(os_error(errno, "fsync"));
  return {};
}

}  // namespace sortie::files
