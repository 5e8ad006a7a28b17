#include "runner/container/inside.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace sortie::runner::container {

std::vector<std::string> default_environment(const wire::JobSpec& job) {
  const wire::ContainerSpec& spec = job.container;
  const auto given = [&spec](const char* name) {
    return std::ranges::find(spec.capabilities, name) != spec.capabilities.end();
  };
  // To read another rank's memory a process needs its pid, which differs in other containers, and a
  // capability that containers lack by default. Without it messages go through shared memory.
  const bool may_read = spec.scope == wire::ContainerScope::host &&
                        (spec.privileged != 0 || given("SYS_PTRACE") || given("ALL"));
  if (may_read) return {};
  return {"OMPI_MCA_btl_vader_single_copy_mechanism=none"};
}

int missing_paths(std::span<char* const> paths) {
  for (const char* path : paths) {
    struct stat info {};
    // This user may lack access where the engine has it.
    if (::stat(path, &info) == 0 || errno == EACCES) continue;
    std::printf("%s (%s)\n", path, std::strerror(errno));
  }
  return 0;
}

}  // namespace sortie::runner::container
