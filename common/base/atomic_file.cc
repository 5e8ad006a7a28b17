#include "common/base/atomic_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <cerrno>

#include "common/base/fd.h"

namespace sortie {

Result<std::string> read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    const ErrorCode code = errno == ENOENT ? ErrorCode::not_found : ErrorCode::io;
    return std::unexpected(os_error(errno, path.string(), code));
  }
  std::string content;
  char buffer[1 << 14];  // a larger one would touch stack pages that nothing else needs
  for (;;) {
    const ssize_t count = ::read(file.get(), buffer, sizeof buffer);
    if (count == 0) return content;
    if (count < 0) {
      if (errno == EINTR) continue;
      return std::unexpected(os_error(errno, path.string()));
    }
    if (content.size() + static_cast<std::size_t>(count) > max_bytes)
      return fail(ErrorCode::io,
                  fmt::format("{}: larger than the limit of {} bytes", path.string(), max_bytes));
    content.append(buffer, static_cast<std::size_t>(count));
  }
}

Result<> sync_path(const std::filesystem::path& path) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file || ::fsync(file.get()) != 0)
    return std::unexpected(os_error(errno, "fsync " + path.string()));
  return {};
}

Result<> write_file_atomic(const std::filesystem::path& path, std::string_view content, int mode) {
  const std::filesystem::path temporary = fmt::format("{}.tmp-{}", path.string(), ::getpid());
  Fd file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                 static_cast<mode_t>(mode)));
  if (!file) return std::unexpected(os_error(errno, "create " + temporary.string()));
  auto give_up = [&](std::string_view what) -> Result<> {
    const int saved = errno;
    ::unlink(temporary.c_str());
    return std::unexpected(os_error(saved, fmt::format("{} {}", what, temporary.string())));
  };
  while (!content.empty()) {
    const ssize_t count = ::write(file.get(), content.data(), content.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      return give_up("write");
    }
    content.remove_prefix(static_cast<std::size_t>(count));
  }
  if (::fsync(file.get()) != 0) return give_up("fsync");
  if (::close(file.release()) != 0) return give_up("close");
  if (::rename(temporary.c_str(), path.c_str()) != 0) return give_up("rename");
  const std::filesystem::path parent = path.parent_path();
  return sync_path(parent.empty() ? "." : parent);
}

}  // namespace sortie
