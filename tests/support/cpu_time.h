// CPU time of a process.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace sortie::test {

/// User and system time of all current threads of a process, in seconds.
inline double cpu_seconds(pid_t pid) {
  double ns = 0;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::ifstream file(task.path() / "schedstat");
    double more = 0;
    file >> more;
    ns += more;
  }
  return ns / 1e9;
}

}  // namespace sortie::test
