#include "runner/process/carried_program.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace sortie::runner {
namespace {

Result<> write_program(int fd, std::string_view bytes, std::string_view what) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0) return std::unexpected(os_error(errno, what));
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

/// Writes the program to a memfd. Returns its path in /proc.
Result<std::string> program_in_memory(const char* name, std::string_view bytes, Fd& holder) {
  constexpr unsigned kMfdExec = 0x10;  // since Linux 6.3; older kernels refuse it and need none
  holder.reset(::memfd_create(name, MFD_CLOEXEC | kMfdExec));
  if (!holder && errno == EINVAL) holder.reset(::memfd_create(name, MFD_CLOEXEC));
  if (!holder) return std::unexpected(os_error(errno, "memfd_create"));
  SORTIE_TRY(write_program(holder.get(), bytes, "memfd"));
  return fmt::format("/proc/self/fd/{}", holder.get());
}

Result<std::string> program_in_folder(const char* name, std::string_view bytes,
                                      const std::string& folder) {
  const std::string path = folder + '/' + name;
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700));
  if (!file) return std::unexpected(os_error(errno, path));
  SORTIE_TRY(write_program(file.get(), bytes, path));
  return path;
}

}  // namespace

Result<std::string> unpack_program(const char* name, std::string_view bytes,
                                   const std::string& folder, Fd& holder) {
  Result<std::string> path = program_in_memory(name, bytes, holder);
  if (!path) path = program_in_folder(name, bytes, folder);
  return path;
}

}  // namespace sortie::runner
