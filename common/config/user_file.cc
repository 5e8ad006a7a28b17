#include "common/config/user_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "common/base/environment.h"
#include "common/base/fd.h"

namespace sortie::config {
namespace {

constexpr std::size_t kMaxUserFileBytes = 1u << 20;

std::string usual_place() {
  if (const std::string folder = environment_variable("XDG_CONFIG_HOME"); folder.starts_with('/'))
    return fmt::format("{}/sortie/config.toml", folder);
  const std::string home = environment_variable("HOME");
  return home.starts_with('/') ? fmt::format("{}/.config/sortie/config.toml", home) : "";
}

/// Checks the open descriptor, because the path may lead to another file a moment later.
Result<> check_owner(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return std::unexpected(os_error(errno, path));
  if (!S_ISREG(info.st_mode))
    return fail(ErrorCode::config, fmt::format("{}: is no file; remove it", path));
  if (info.st_uid != ::geteuid() && info.st_uid != 0)
    return fail(ErrorCode::config,
                fmt::format("{}: belongs to uid {}, and this is uid {}; make it your own file, or "
                            "set {}=none to go without it",
                            path, info.st_uid, ::geteuid(), kUserFileVariable));
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return fail(ErrorCode::config,
                fmt::format("{}: others can write it (mode {:04o}), and it can name programs to "
                            "run; chmod go-w it",
                            path, static_cast<unsigned>(info.st_mode & 07777)));
  return {};
}

Result<std::string> read_all(int fd, const std::string& path) {
  std::string text(kMaxUserFileBytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::read(fd, text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::unexpected(os_error(errno, path));
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  if (size > kMaxUserFileBytes)
    return fail(ErrorCode::config,
                fmt::format("{}: larger than the limit of {} bytes", path, kMaxUserFileBytes));
  text.resize(size);
  return text;
}

}  // namespace

Result<std::optional<UserFile>> read_user_file() {
  const std::string named = environment_variable(kUserFileVariable);
  if (named == "none") return std::nullopt;
  const std::string path = named.empty() ? usual_place() : named;
  if (path.empty()) return std::nullopt;
  // Without O_NONBLOCK, a FIFO at this path would block every command.
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    if (named.empty() && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
    Error error = os_error(errno, path);
    error.message += fmt::format("; {}=none uses no user's config", kUserFileVariable);
    return std::unexpected(std::move(error));
  }
  SORTIE_TRY(check_owner(file.get(), path));
  SORTIE_ASSIGN_OR_RETURN(std::string text, read_all(file.get(), path));
  return UserFile{path, std::move(text)};
}

}  // namespace sortie::config
