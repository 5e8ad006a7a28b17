#include "trainer/metrics/memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace sortie::trainer {
namespace {
namespace fs = std::filesystem;

constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

/// Returns the value of "KEY: N kB" in a file of /proc, in bytes; 0 if there is none.
std::int64_t proc_bytes(const char* file, const std::string& key) {
  std::ifstream lines(file);
  std::string word;
  while (lines >> word) {
    std::int64_t kibibytes = 0;
    if (word == key && lines >> kibibytes) return kibibytes * 1024;
    lines.ignore(1 << 12, '\n');
  }
  return 0;
}

/// Returns the number in a file; kUnlimited for "max" or if it can not be read.
std::uint64_t number_in(const fs::path& file) {
  std::uint64_t value = 0;
  return std::ifstream(file) >> value ? value : kUnlimited;
}

/// Returns what is left of the tightest limit. Page cache counts as free, because the kernel
/// reclaims it when needed.
std::uint64_t left_in_cgroups() {
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  std::uint64_t left = kUnlimited;
  while (std::getline(groups, line)) {
    if (!line.starts_with("0::/")) continue;
    const fs::path root = "/sys/fs/cgroup";
    for (fs::path at = root / line.substr(4); at != at.parent_path(); at = at.parent_path()) {
      const std::uint64_t limit = number_in(at / "memory.max");
      const std::uint64_t used = number_in(at / "memory.current");
      if (limit != kUnlimited && used != kUnlimited) {
        std::uint64_t files = 0;
        std::ifstream stat(at / "memory.stat");
        std::string key;
        for (std::uint64_t value = 0; stat >> key >> value;)
          if (key == "inactive_file" || key == "active_file") files += value;
        const std::uint64_t kept = used - std::min(used, files);
        left = std::min(left, limit - std::min(limit, kept));
      }
      if (at == root) break;
    }
  }
  return left;
}

}  // namespace

std::int64_t peak_memory_bytes() {
  return proc_bytes("/proc/self/status", "VmHWM:");
}

std::uint64_t available_memory_bytes() {
  const auto host = static_cast<std::uint64_t>(proc_bytes("/proc/meminfo", "MemAvailable:"));
  const std::uint64_t group = left_in_cgroups();
  if (group == kUnlimited) return host;
  return host == 0 ? group : std::min(host, group);
}

}  // namespace sortie::trainer
