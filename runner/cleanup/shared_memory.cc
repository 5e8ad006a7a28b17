#include "runner/cleanup/shared_memory.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace sortie::runner {

namespace fs = std::filesystem;

std::string shared_memory_folder(const fs::path& run_folder) {
  return fmt::format("/dev/shm/sortie-{}-{}", ::geteuid(), run_folder.filename().native());
}

Result<std::string> make_shared_memory_folder(const fs::path& run_folder) {
  const std::string path = shared_memory_folder(run_folder);
  if (::mkdir(path.c_str(), 0700) != 0) return std::unexpected(os_error(errno, path));
  return path;
}

void remove_with_shared_memory(const fs::path& run_folder) {
  std::error_code ignored;
  fs::remove_all(shared_memory_folder(run_folder), ignored);
  fs::remove_all(run_folder, ignored);
}

}  // namespace sortie::runner
