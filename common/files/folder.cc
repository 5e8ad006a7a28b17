#include "common/files/folder.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "common/files/entry_path.h"

namespace sortie::files {
namespace {

constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

}  // namespace

Result<Folder> Folder::open(const std::string& path, unsigned mode) {
  // A refusal does not matter if the folder exists, because some file systems refuse before they
  // look. Else it is the cause of the ENOENT that follows.
  std::optional<Error> refused;
  const auto failed = [&](int error, const std::string& where) {
    return std::unexpected(error == ENOENT && refused ? *refused : os_error(error, where));
  };
  for (std::size_t at = 1; at < path.size();) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    const std::string part = path.substr(0, slash);
    at = slash + 1;
    if (::mkdir(part.c_str(), mode) == 0 || errno == EEXIST) continue;
    if (errno != EROFS && errno != EACCES) return failed(errno, part);
    refused = os_error(errno, fmt::format("{}: make this folder", part));
  }
  Folder folder;
  folder.path_ = path;
  folder.fd_.reset(::open(path.c_str(), kFolderFlags));
  if (!folder.fd_) return failed(errno, path);
  return folder;
}

Result<int> Folder::parent(std::string_view entry_path) {
  const std::string_view wanted = parent_of(entry_path);
  if (wanted.empty()) return fd_.get();
  if (parent_fd_ && wanted == parent_path_) return parent_fd_.get();
  Fd at;
  for (std::size_t begin = 0; begin < wanted.size();) {
    const std::size_t end = std::min(wanted.find('/', begin), wanted.size());
    const std::string name(wanted.substr(begin, end - begin));
    Fd next(::openat(at ? at.get() : fd_.get(), name.c_str(), kFolderFlags | O_NOFOLLOW));
    if (!next) {
      const int error = errno;
      const std::string where = shown(wanted.substr(0, end));
      if (error == ELOOP || error == ENOTDIR)
        return fail(ErrorCode::io,
                    where + ": is a symlink or file, and a folder is needed; remove it");
      return std::unexpected(os_error(error, where));
    }
    at = std::move(next);
    begin = end + 1;
  }
  parent_fd_ = std::move(at);
  parent_path_ = wanted;
  return parent_fd_.get();
}

std::string Folder::shown(std::string_view entry_path) const {
  return fmt::format("{}{}{}", path_, path_.ends_with('/') ? "" : "/", shown_path(entry_path));
}

}  // namespace sortie::files
