#include "launcher/run/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

namespace sortie::launcher {
namespace {

/// Whether the file exists and is not empty, and its last byte is not '\n'.
bool lacks_line_end(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) return false;
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char last = '\n';
  return file && ::pread(file.get(), &last, 1, info.st_size - 1) == 1 && last != '\n';
}

}  // namespace

Result<> LineFile::open() {
  if (file_) return {};
  const bool torn = lacks_line_end(path_);
  file_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!file_) return std::unexpected(os_error(errno, path_.string()));
  if (torn) waiting_.insert(0, "\n");
  return {};
}

Result<> LineFile::append(std::string_view line) {
  const bool room = waiting_.size() + line.size() <= kMaxWaiting;
  if (room)
    waiting_ += line;
  else
    ++dropped_;
  return flush();
}

Result<> LineFile::flush() {
  if (waiting_.empty()) return {};
  SORTIE_TRY(open());
  std::size_t done = 0;
  int error = 0;
  while (done < waiting_.size() && error == 0) {
    const ssize_t count = ::write(file_.get(), waiting_.data() + done, waiting_.size() - done);
    if (count > 0)
      done += static_cast<std::size_t>(count);
    else if (errno != EINTR)
      error = count == 0 ? ENOSPC : errno;
  }
  waiting_.erase(0, done);
  if (error == 0) return {};
  return std::unexpected(os_error(error, path_.string()));
}

}  // namespace sortie::launcher
