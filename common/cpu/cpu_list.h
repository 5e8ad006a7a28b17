// Sets of CPU numbers in the kernel's notation: "0-3,8". Sorted, without duplicates.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::cpu {

using CpuList = std::vector<std::uint32_t>;

/// More than any machine has. A list with this or a larger number is an error.
inline constexpr std::uint32_t kMaxCpus = 1u << 14;

/// Parses "0-3,8\n"; "" is the empty list.
Result<CpuList> parse_cpu_list(std::string_view text);
std::string cpu_list_text(const CpuList& cpus);

/// The CPUs on which this process may run: its affinity mask, which the kernel keeps within the
/// cpuset. Never empty.
CpuList allowed_cpus();

/// Binds the calling process to `cpus`. No-op if the kernel refuses (such as for an offline CPU).
/// For a child process between fork and exec.
void confine_to(const CpuList& cpus);

}  // namespace sortie::cpu
