// Tests whether a folder is inaccessible to other users, so that only this user made its content.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace sortie {

/// True for a folder (not a link to one) that the effective user owns, with no permission for
/// others.
inline bool is_private_folder(const struct stat& info) {
  return S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & 077) == 0;
}
/// Also false if `path` does not exist.
inline bool is_private_folder(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && is_private_folder(info);
}

}  // namespace sortie
