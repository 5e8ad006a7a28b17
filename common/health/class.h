// The scales on which findings about a host are judged: class, action and remedy.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sortie::health {

/// In ascending order: among several findings about one device, the highest class is the cause.
enum class Class : std::uint8_t {
  info,         // a notice, or an unknown code
  consequence,  // follows from another error
  app,          // caused by the program
  resource,     // memory, disk space, clock: no device is faulty
  link,         // between devices or hosts
  driver,       // driver or firmware
  hardware,
};

/// In ascending order of severity. Sortie never resets, reboots or drains anything itself.
enum class Action : std::uint8_t {
  ignore,   // recorded
  watch,    // shown; explains no failure
  drain,    // the host needs its remedy when the job has ended; explains no failure
  restart,  // explains a failure on that host; the host may be used again
  cordon,   // explains a failure; the host is unusable until someone repairs it
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

/// What an administrator should do.
enum class Remedy : std::uint8_t {
  none,
  check_program,  // run the program under a memory checker
  reset_gpu,
  reboot,
  inspect,   // power, cables, seating
  software,  // driver, firmware, vGPU or VM: no single command repairs it
  nvlink,    // inspect the links
  memory,    // use less of it, or raise the limit
  space,     // free some
  clock,     // time synchronization
  storage,   // inspect the disk's health
  network,   // inspect the link's counters
};

}  // namespace sortie::health
