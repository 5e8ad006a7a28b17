// Sets of CPU numbers as the kernel writes them: "0-3,8". Sorted, each number once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::cpu {

using CpuList = std::vector<std::uint32_t>;

/// More CPUs than any machine has; a larger number in a list is an error.
inline constexpr std::uint32_t kMaxCpus = 1u << 14;

/// "0-3,8\n" and "" are lists.
Result<CpuList> parse_cpu_list(std::string_view text);
std::string cpu_list_text(const CpuList& cpus);

/// The CPUs that this process may be scheduled on: its affinity mask, which the kernel keeps within
/// the cpuset. Never empty.
CpuList allowed_cpus();

/// Confines the calling process to `cpus`; it keeps what it had where the kernel refuses (a CPU
/// that has gone offline). For a child between fork and exec.
void confine_to(const CpuList& cpus);

}  // namespace sortie::cpu
