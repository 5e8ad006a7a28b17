// A finding: one observation of sortie-health about its host, facts only. judge.h interprets it:
// the launcher does not trust a host and decides by its own table.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sortie::health {

enum class Kind : std::uint8_t {
  sources,        // text: what is monitored here, and what can not be
  xid,            // code; device = PCI address
  sxid,           // error code of an NVSwitch; fatal
  gpu_lost,       // a GPU does not answer, or there are fewer than before
  recovery,       // the driver requests an action: `recovery`
  ecc,            // uncorrectable memory errors; value = number of new ones
  ecc_corrected,  // many corrected memory errors; value = number of new ones
  remap_pending,  // a memory row is remapped at the next reset
  remap_failed,   // rows can not be remapped
  throttle,       // slowed down by heat or power; value = seconds
  nvlink_down,    // code = the link's number
  driver_silent,  // NVML does not answer; value = seconds
  machine_check,  // error of CPU or memory; fatal = not corrected
  pcie,           // error of a PCIe device; fatal
  disk,           // I/O or file system error; device = disk
  storage,        // a network file system or a folder that does not answer
  oom_kill,       // the OOM killer ended a process
  link_blip,      // a network link was down for a moment
  link_down,      // a network link is down for longer; value = seconds
  link_flap,      // it goes down repeatedly; value = times in five minutes
  link_stall,     // its driver or adapter does not send
  clock_step,     // the wall clock was set; value = seconds
  space,          // a folder is nearly full; value = bytes free, -1 = no inodes
  dropped,        // `count` findings were omitted
  helper_lost,    // from the runner: sortie-health has ended
};

inline constexpr std::array<std::string_view, 25> kKindNames = {
    "sources",     "xid",           "sxid",          "gpu_lost",     "recovery",
    "ecc",         "ecc_corrected", "remap_pending", "remap_failed", "throttle",
    "nvlink_down", "driver_silent", "machine_check", "pcie",         "disk",
    "storage",     "oom_kill",      "link_blip",     "link_down",    "link_flap",
    "link_stall",  "clock_step",    "space",         "dropped",      "helper_lost"};

constexpr std::string_view kind_name(Kind kind) {
  return kKindNames[static_cast<std::size_t>(kind)];
}
/// Returns nullopt for a name that this version does not know.
constexpr std::optional<Kind> kind_of(std::string_view name) {
  for (std::size_t i = 0; i < kKindNames.size(); ++i)
    if (kKindNames[i] == name) return static_cast<Kind>(i);
  return std::nullopt;
}

/// Values of NVML's field for the action that a GPU needs.
inline constexpr int kRecoveryNone = 0, kRecoveryReset = 1, kRecoveryReboot = 2,
                     kRecoveryDrainPeers = 3, kRecoveryDrainReset = 4, kRecoveryFabric = 5,
                     kRecoveryBusReset = 6, kRecoverySystemReboot = 7;

inline constexpr std::size_t kMaxDeviceBytes = 128, kMaxTextBytes = 300, kMaxUuidBytes = 96;

struct Finding {
  Kind kind = Kind::sources;
  int code = 0;
  std::string device = {};         // "0000:3b:00.0", "nvme0n1", "eth0", "/tmp"; empty = the host
  std::optional<int> gpu = {};     // NVML's index
  std::string uuid = {};           // of the GPU
  std::string source = {};         // kmsg, nvml, sysfs, cgroup, clock, disk, runner
  std::string text = {};           // the message of the source
  std::optional<bool> fatal = {};  // if the source reports the severity
  std::optional<int> recovery = {};
  std::uint64_t count = 1;  // number since the last such line
  double value = 0;
};

/// "0000:3b:00.0" for "00000000:3B:00.0", "0000:3b:00" ...; empty if `text` is no PCI address.
std::string pci_address(std::string_view text);

/// At most `bytes` of printable ASCII; any other byte becomes '?'.
std::string plain(std::string_view text, std::size_t bytes);

/// The line {"type":"health","kind":"xid", ...} without a line end; README.md lists the members.
/// Its texts are sanitized by plain(). It is shorter than PIPE_BUF, so that pipe writes are atomic.
std::string to_line(const Finding& finding);

}  // namespace sortie::health
