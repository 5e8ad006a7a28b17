// Messages of the kernel that say that something of the host is sick: NVIDIA's driver, machine
// checks, disks, PCIe, the OOM killer, network adapters. Names of processes, which anybody may
// choose, stand in many messages: a message counts only by what the kernel itself has written at
// its front.
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
  std::uint64_t time_us = 0;  // since the start of the machine
  std::string_view text;      // without what follows in further lines
};

/// Nothing for what is no record.
std::optional<KernelRecord> parse_kernel_record(std::string_view record);

/// What the text of the kernel's own record says; nothing for the thousands of others.
std::optional<Finding> kernel_finding(std::string_view text);

/// parse_kernel_record and kernel_finding, for records of the kernel itself alone.
std::optional<Finding> record_finding(std::string_view record);

/// Its parts: about NVIDIA's devices, and about everything else.
std::optional<Finding> nvidia_finding(std::string_view text);
std::optional<Finding> other_finding(std::string_view text);

}  // namespace sortie::health
