#include "runner/health/kernel_log.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

#include "common/health/kernel_line.h"

namespace sortie::runner::health {
namespace {

constexpr std::size_t kMostRecord = 8192;  // the kernel writes no longer ones
constexpr int kMostAtOnce = 4096;

void add_record(std::string_view record, std::vector<sortie::health::Finding>& findings) {
  if (auto finding = sortie::health::record_finding(record)) findings.push_back(*finding);
}

}  // namespace

Result<KernelLog> KernelLog::open(const std::string& path) {
  KernelLog log;
  log.log_.reset(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (!log.log_ || ::fstat(log.log_.get(), &info) != 0)
    return std::unexpected(os_error(errno, path));
  if (::lseek(log.log_.get(), 0, SEEK_END) < 0) return std::unexpected(os_error(errno, path));
  if (!S_ISREG(info.st_mode)) return log;
  log.watch_.reset(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!log.watch_ || ::inotify_add_watch(log.watch_.get(), path.c_str(), IN_MODIFY) < 0)
    return std::unexpected(os_error(errno, path));
  return log;
}

bool KernelLog::read(std::vector<sortie::health::Finding>& findings) {
  return watch_ ? read_file(findings) : read_device(findings);
}

/// Each read() returns one record.
bool KernelLog::read_device(std::vector<sortie::health::Finding>& findings) {
  std::array<char, kMostRecord> record;
  for (int i = 0; i < kMostAtOnce; ++i) {
    const ssize_t count = ::read(log_.get(), record.data(), record.size());
    if (count > 0)
      add_record({record.data(), static_cast<std::size_t>(count)}, findings);
    else if (count < 0 && errno == EAGAIN)
      return true;
    else if (count == 0 || (errno != EPIPE && errno != EINTR && errno != EINVAL))
      return false;
    // EPIPE: records were overwritten before they were read; the next read continues after them.
  }
  return true;
}

bool KernelLog::read_file(std::vector<sortie::health::Finding>& findings) {
  std::array<char, kMostRecord> bytes;
  while (::read(watch_.get(), bytes.data(), bytes.size()) > 0) {
  }
  for (;;) {
    const ssize_t count = ::read(log_.get(), bytes.data(), bytes.size());
    if (count < 0) return errno == EINTR;
    if (count == 0) return true;
    line_.append(bytes.data(), static_cast<std::size_t>(count));
    for (std::size_t end; (end = line_.find('\n')) != line_.npos;) {
      add_record(std::string_view(line_).substr(0, end), findings);
      line_.erase(0, end + 1);
    }
    if (line_.size() > kMostRecord) line_.clear();
  }
}

}  // namespace sortie::runner::health
