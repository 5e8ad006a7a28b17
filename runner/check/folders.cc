#include "runner/check/folders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "common/base/fd.h"
#include "common/base/file_sample.h"

namespace sortie::runner::check {
namespace {

constexpr std::size_t kWritten = 64u << 10;

std::string why(int error) {
  return std::strerror(error);
}

/// `path` itself or its nearest existing ancestor. `error`: errno, 0 for a folder.
std::string nearest_existing(std::string path, bool& exists, int& error) {
  struct stat info {};
  exists = true;
  error = 0;
  while (::stat(path.c_str(), &info) != 0) {
    error = errno;
    if (error != ENOENT) return path;
    exists = false;
    const std::size_t slash = path.find_last_not_of('/');
    const std::size_t cut = path.rfind('/', slash);
    path = cut == std::string::npos || cut == 0 ? "/" : path.substr(0, cut);
  }
  error = S_ISDIR(info.st_mode) ? 0 : ENOTDIR;
  return path;
}

/// Creates a file that exists only while its descriptor is open. Where that is not supported (NFS),
/// creates a file and unlinks it at once.
Fd make_scratch_file(const std::string& folder) {
  Fd file(::open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600));
  if (file || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return file;
  std::string name = folder + "/.sortie-check-XXXXXX";
  file.reset(::mkostemp(name.data(), O_CLOEXEC));
  if (file) ::unlink(name.c_str());
  return file;
}

void try_writing(FolderFacts& facts) {
  const auto begin = std::chrono::steady_clock::now();
  const Fd file = make_scratch_file(facts.at);
  const std::vector<char> bytes(kWritten, 's');
  if (!file || ::write(file.get(), bytes.data(), bytes.size()) != ssize_t{kWritten} ||
      ::fsync(file.get()) != 0) {
    facts.error = why(errno);
    return;
  }
  facts.writable = true;
  facts.sync_us = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                                 std::chrono::steady_clock::now() - begin)
                                                 .count());
}

}  // namespace

FolderFacts look_at_folder(const std::string& path, bool try_write) {
  FolderFacts facts;
  int error = 0;
  facts.at = nearest_existing(path, facts.exists, error);
  struct statvfs space {};
  if (error == 0 && ::statvfs(facts.at.c_str(), &space) != 0) error = errno;
  if (error != 0) {
    facts.error = why(error);
    return facts;
  }
  facts.free_bytes = std::uint64_t{space.f_bavail} * space.f_frsize;
  facts.total_bytes = std::uint64_t{space.f_blocks} * space.f_frsize;
  facts.free_inodes = space.f_favail;
  facts.total_inodes = space.f_files;
  facts.read_only = (space.f_flag & ST_RDONLY) != 0;
  if (try_write) try_writing(facts);
  return facts;
}

FileFacts look_at_file(const std::string& path) {
  FileFacts facts;
  if (const auto sample = sample_file(path)) {
    facts.size = sample->size;
    facts.hash = sample->hash;
  } else {
    facts.error = sample.error().message;
  }
  return facts;
}

}  // namespace sortie::runner::check
