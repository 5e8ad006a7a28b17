#include "launcher/local/open_files.h"

#include <sys/resource.h>

namespace sortie::launcher {
namespace {

std::optional<unsigned long>& original() {
  static std::optional<unsigned long> limit;
  return limit;
}

}  // namespace

void raise_open_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  const auto was = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0 && !original()) original() = was;
}

std::optional<unsigned long> original_open_file_limit() {
  return original();
}

}  // namespace sortie::launcher
