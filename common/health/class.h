// What a finding about a host is, and what follows from it: the two scales of every table here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sortie::health {

/// In rising order: of several findings about one device the highest one is the cause.
enum class Class : std::uint8_t {
  info,         // a notice; also what nobody knows
  consequence,  // follows from another error
  app,          // the program did it
  resource,     // memory, disk space, clock: no device is sick
  link,         // between devices or hosts
  driver,       // driver or firmware
  hardware,
};

/// In rising order of how much it takes. Sortie never resets, reboots or drains anything itself.
enum class Action : std::uint8_t {
  ignore,   // recorded
  watch,    // shown; no evidence for anything
  drain,    // the host should get its remedy when the job has ended; no evidence
  restart,  // explains a failure on that host; the host may be used again
  cordon,   // the same, and the host is of no use until a person has acted
};

inline constexpr std::array<std::string_view, 7> kClassNames = {
    "info", "consequence", "app", "resource", "link", "driver", "hardware"};
inline constexpr std::array<std::string_view, 5> kActionNames = {"ignore", "watch", "drain",
                                                                 "restart", "cordon"};

constexpr std::string_view class_name(Class value) {
  return kClassNames[static_cast<std::size_t>(value)];
}
constexpr std::string_view action_name(Action value) {
  return kActionNames[static_cast<std::size_t>(value)];
}

/// What a person does about it.
enum class Remedy : std::uint8_t {
  none,
  check_program,  // the program under a memory checker
  reset_gpu,
  reboot,
  inspect,   // power, cables, seating
  software,  // driver, firmware, vGPU or VM: nothing that one command mends
  nvlink,    // look at the links
  memory,    // less of it, or a larger limit
  space,     // free some
  clock,     // time synchronization
  storage,   // the disk's own health
  network,   // the link's own counters
};

}  // namespace sortie::health
