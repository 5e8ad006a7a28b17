#include "launcher/shell/shell_history.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "common/base/atomic_file.h"
#include "common/base/fd.h"

namespace sortie::launcher {
namespace {

constexpr std::size_t kMaxHistoryBytes = 16u << 20;

Result<> check_own(int fd, const std::filesystem::path& file) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return std::unexpected(os_error(errno, file.string()));
  if (!S_ISREG(info.st_mode) || info.st_uid != ::geteuid())
    return fail(ErrorCode::config,
                fmt::format("{}: is no file of this user; remove it", file.string()));
  // Lines may contain secrets: remove access for others from files with wider permissions.
  if ((info.st_mode & 077) != 0 && ::fchmod(fd, 0600) != 0)
    return std::unexpected(os_error(errno, file.string()));
  return {};
}

}  // namespace

Result<std::vector<std::string>> load_history(const std::filesystem::path& file) {
  const Fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) {
    if (errno == ENOENT || errno == ENOTDIR) return std::vector<std::string>();
    return std::unexpected(os_error(errno, file.string()));
  }
  SORTIE_TRY(check_own(fd.get(), file));
  SORTIE_ASSIGN_OR_RETURN(const std::string text, read_file(file, kMaxHistoryBytes));
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (lines.size() > kHistoryLines) {
    const bool many = lines.size() > 2 * kHistoryLines;
    lines.erase(lines.begin(), lines.end() - kHistoryLines);
    std::string kept;
    for (const std::string& line : lines) kept += line + '\n';
    if (many) SORTIE_TRY(write_file_atomic(file, kept, 0600));
  }
  return lines;
}

Result<> append_history(const std::filesystem::path& file, const std::string& line) {
  const Fd fd(::open(file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return std::unexpected(os_error(errno, file.string()));
  SORTIE_TRY(check_own(fd.get(), file));
  const std::string text = line + '\n';
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return std::unexpected(os_error(errno, file.string()));
  return {};
}

}  // namespace sortie::launcher
