// Recognizes kernel messages about faults of the host: NVIDIA's driver, machine checks, disks,
// PCIe, the OOM killer, network adapters. Many messages contain process names, which any user can
// choose. So a message is recognized only by the text that the kernel itself writes at its start.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/health/finding.h"

namespace sortie::health {

/// One record of /dev/kmsg: "6,1234,5678901,-;text\n KEY=value\n".
struct KernelRecord {
  int level = 0;     // 0 to 7
  int facility = 0;  // 0 = the kernel itself; others were written by processes
  std::uint64_t sequence = 0;
  std::string_view text;  // the first line; a view into the record
};

/// Returns nullopt if the text is no record.
std::optional<KernelRecord> parse_kernel_record(std::string_view record);

/// The finding in the text of a record by the kernel itself; nullopt for all other messages.
std::optional<Finding> kernel_finding(std::string_view text);

/// Combines parse_kernel_record() and kernel_finding(); nullopt for records by processes.
std::optional<Finding> record_finding(std::string_view record);

/// The parts of kernel_finding(): about NVIDIA's devices, and about everything else.
std::optional<Finding> nvidia_finding(std::string_view text);
std::optional<Finding> other_finding(std::string_view text);

}  // namespace sortie::health
