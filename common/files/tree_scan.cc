#include "common/files/tree_scan.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/files/entry_path.h"
#include "common/files/piece.h"

namespace sortie::files {
namespace {

std::string joined(const std::string& folder, std::string_view name) {
  return folder.ends_with('/') ? folder + std::string(name) : fmt::format("{}/{}", folder, name);
}

Result<std::vector<std::string>> names_in(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), ::closedir);
  if (!dir) return std::unexpected(os_error(errno, path));
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(dir.get())) {
    const std::string_view name = entry->d_name;
    // Unfinished files of an interrupted transfer are not part of the tree.
    if (name != "." && name != ".." && !name.starts_with(kPartPrefix)) names.emplace_back(name);
    errno = 0;
  }
  if (errno != 0) return std::unexpected(os_error(errno, path));
  std::ranges::sort(names, std::ranges::greater());
  return names;
}

/// Reads `length` bytes at `offset`; fewer only at the end of the file.
Result<std::size_t> read_at(int fd, char* to, std::size_t length, std::uint64_t offset,
                            const std::string& path) {
  std::size_t done = 0;
  while (done < length) {
    const ssize_t count = ::pread(fd, to + done, length - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::unexpected(os_error(errno, path));
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  return done;
}

/// Refuses a file that says that it is empty and is not, as those of /proc.
Result<> check_empty(int fd, const std::string& path) {
  char byte = 0;
  const ssize_t count = ::pread(fd, &byte, 1, 0);
  if (count < 0) return std::unexpected(os_error(errno, path));
  struct stat now {};
  if (count == 0 || ::fstat(fd, &now) != 0 || now.st_size != 0) return {};  // it may grow
  return fail(ErrorCode::io,
              path + ": has content but no size, as files of /proc; copy what `cat` prints of it");
}

Result<> check_size(std::uint64_t size, const std::string& path) {
  if (size <= TreeScan::kMaxFileBytes) return {};
  return fail(ErrorCode::unsupported,
              fmt::format("{}: larger than {} GiB; split it", path, TreeScan::kMaxFileBytes >> 30));
}

}  // namespace

Result<FileHasher> FileHasher::open(std::string path, wire::FileEntry entry, bool follow) {
  FileHasher hasher;
  hasher.file_ =
      Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow ? 0 : O_NOFOLLOW)));
  struct stat info {};
  if (!hasher.file_ || ::fstat(hasher.file_.get(), &info) != 0)
    return std::unexpected(
        os_error(errno, path, errno == ENOENT ? ErrorCode::not_found : ErrorCode::io));
  if (!S_ISREG(info.st_mode)) return fail(ErrorCode::io, path + ": is no longer a file");
  entry.size = static_cast<std::uint64_t>(info.st_size);
  entry.mode = info.st_mode & 0777;
  SORTIE_TRY(check_size(entry.size, path));
  if (entry.size == 0) SORTIE_TRY(check_empty(hasher.file_.get(), path));
  hasher.path_ = std::move(path);
  hasher.entry_ = std::move(entry);
  return hasher;
}

Result<std::uint64_t> FileHasher::more() {
  if (done()) return 0;
  buffer_.resize(wire::kPieceBytes);
  const auto wanted = static_cast<std::size_t>(std::min(wire::kPieceBytes, entry_.size - at_));
  SORTIE_ASSIGN_OR_RETURN(const std::size_t count,
                          read_at(file_.get(), buffer_.data(), wanted, at_, path_));
  if (count != wanted) return fail(ErrorCode::data, path_ + ": became shorter while it was read");
  entry_.hashes += hash_bytes({buffer_.data(), count});
  at_ += count;
  return count;
}

TreeScan::TreeScan(std::vector<ScanRoot> roots) : roots_(std::move(roots)) {
  std::ranges::sort(
      roots_, [](const ScanRoot& a, const ScanRoot& b) { return entry_path_less(b.name, a.name); });
}

Result<TreeScan::Step> TreeScan::visit(std::string path, std::string name, bool is_root,
                                       bool bare) {
  struct stat info {};
  if ((is_root ? ::stat(path.c_str(), &info) : ::lstat(path.c_str(), &info)) != 0)
    return std::unexpected(
        os_error(errno, path, errno == ENOENT ? ErrorCode::not_found : ErrorCode::io));
  if (auto checked = check_entry_path(name); !checked)
    return std::unexpected(with_context(std::move(checked).error(), path));
  wire::FileEntry entry;
  entry.path = name;
  entry.mode = info.st_mode & 0777;
  if (S_ISDIR(info.st_mode)) {
    entry.kind = wire::FileKind::folder;
    if (!bare) {
      SORTIE_ASSIGN_OR_RETURN(auto children, names_in(path));
      levels_.push_back({path, std::move(name), std::move(children)});
    }
  } else if (S_ISLNK(info.st_mode)) {
    entry.kind = wire::FileKind::symlink;
    entry.mode = 0777;
    std::array<char, 4096> target{};
    const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
    if (length < 0) return std::unexpected(os_error(errno, path));
    entry.link_target.assign(target.data(), static_cast<std::size_t>(length));
  } else if (S_ISREG(info.st_mode)) {
    entry.kind = wire::FileKind::file;
    entry.size = static_cast<std::uint64_t>(info.st_size);
    if (!only_list_) {
      SORTIE_ASSIGN_OR_RETURN(hashing_, FileHasher::open(path, std::move(entry), is_root));
      paths_.push_back(std::move(path));
      return hash_more();
    }
    SORTIE_TRY(check_size(entry.size, path));
  } else {
    return fail(ErrorCode::io, path + ": neither a file, a folder nor a symlink; leave it out");
  }
  paths_.push_back(std::move(path));
  return Step{std::move(entry), is_root};
}

Result<TreeScan::Step> TreeScan::hash_more() {
  SORTIE_TRY(hashing_->more());
  if (!hashing_->done()) return Step{};
  Step step{hashing_->take()};
  hashing_.reset();
  return step;
}

Result<TreeScan::Step> TreeScan::step() {
  auto taken = step_or_fail();
  if (taken || !on_left_out_) return taken;
  if (hashing_) {
    hashing_.reset();
    paths_.pop_back();
  }
  on_left_out_(taken.error());
  return Step{};
}

Result<TreeScan::Step> TreeScan::step_or_fail() {
  if (hashing_) return hash_more();
  while (!levels_.empty()) {
    Level& level = levels_.back();
    if (level.children.empty()) {
      levels_.pop_back();
      continue;
    }
    const std::string child = std::move(level.children.back());
    level.children.pop_back();
    return visit(joined(level.path, child), level.name + "/" + child, false);
  }
  if (roots_.empty()) return Step{std::nullopt, false, true};
  ScanRoot root = std::move(roots_.back());
  roots_.pop_back();
  return visit(std::move(root.path), std::move(root.name), true, root.bare);
}

Result<std::string> PieceReader::read(const std::string& path, std::uint64_t size,
                                      std::uint64_t piece) {
  if (path != path_ || !file_) {
    path_ = path;
    file_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file_) return std::unexpected(os_error(errno, path));
  }
  std::string bytes(static_cast<std::size_t>(piece_length(size, piece)), '\0');
  SORTIE_ASSIGN_OR_RETURN(const std::size_t count, read_at(file_.get(), bytes.data(), bytes.size(),
                                                           piece * wire::kPieceBytes, path));
  if (count != bytes.size())
    return fail(ErrorCode::data, path + ": became shorter while it was sent");
  return bytes;
}

}  // namespace sortie::files
