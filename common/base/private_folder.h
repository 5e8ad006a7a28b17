// Folders that no other user may enter: what lies in them was made by this user.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace sortie {

/// A folder (no link to one) of the effective user, without any right for others.
inline bool is_private_folder(const struct stat& info) {
  return S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & 077) == 0;
}
/// False also where there is nothing at `path`.
inline bool is_private_folder(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && is_private_folder(info);
}

}  // namespace sortie
