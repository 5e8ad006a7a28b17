// Kernel messages about everything but NVIDIA's devices.
#include <algorithm>
#include <array>

#include "common/health/kernel_line.h"
#include "common/health/words.h"

namespace sortie::health {
namespace {

constexpr std::string_view kNameCharacters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._!-";

bool is_device_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && name.front() != '-' &&
         name.find_first_not_of(kNameCharacters) == name.npos;
}

/// Excludes drives that fail when they are empty, and disks that are files or memory: the disk
/// below them reports the error too.
bool is_real_disk(std::string_view name) {
  constexpr std::array<std::string_view, 5> kOthers = {"sr", "fd", "loop", "zram", "ram"};
  return is_device_name(name) && std::ranges::none_of(kOthers, [&](std::string_view front) {
           return name.starts_with(front) &&
                  name.substr(front.size()).find_first_not_of("0123456789") == name.npos;
         });
}

Finding found(Kind kind, std::string_view device, std::string_view text) {
  Finding finding{.kind = kind, .device = std::string(device)};
  finding.text = text;
  return finding;
}

std::optional<Finding> disk_found(std::string_view name, std::string_view text) {
  if (!is_real_disk(name)) return std::nullopt;
  return found(Kind::disk, name, text);
}

bool contains_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::ranges::any_of(words, [&](std::string_view word) { return text.contains(word); });
}

/// "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400".
std::optional<Finding> machine_check(std::string_view text) {
  const std::string_view whole = text;
  Finding finding = found(Kind::machine_check, "", whole);
  if (take(text, "Memory failure: 0x")) {
    if (!text.contains("hardware memory corruption") && !text.contains("recovery action"))
      return std::nullopt;
    finding.fatal = true;
    return finding;
  }
  if (take(text, "EDAC ")) {
    // "EDAC MC0: 1 UE memory read error on CPU_SrcID#0 ...".
    const auto controller = take_until(text, ": ");
    if (!controller || !controller->starts_with("MC") || !take_number<unsigned>(text))
      return std::nullopt;
    if (take(text, " UE "))
      finding.fatal = true;
    else if (take(text, " CE "))
      finding.fatal = false;
    else
      return std::nullopt;
    return finding;
  }
  if (text.starts_with('{') && !take_until(text, "}")) return std::nullopt;  // number of the report
  take(text, "mce: ");
  if (!take(text, "[Hardware Error]: ")) return std::nullopt;
  if (take(text, "Machine check events logged")) return finding;
  if (take(text, "event severity: ")) {
    finding.fatal = text.starts_with("fatal") || text.starts_with("recoverable");
    return finding;
  }
  if (!take(text, "CPU ") || !take_number<unsigned>(text) || !take(text, ": Machine Check"))
    return std::nullopt;
  constexpr std::uint64_t kUncorrected = std::uint64_t{1} << 61;  // in the status of a bank
  if (!take_until(text, " Bank ") || !take_number<unsigned>(text) || !take(text, ": "))
    return std::nullopt;
  const auto status = take_number<std::uint64_t>(text, 16);
  if (!status) return std::nullopt;
  finding.fatal = (*status & kUncorrected) != 0;
  return finding;
}

/// "I/O error, dev sda, sector 2048", "critical medium error, dev nvme0n1, ...".
std::optional<Finding> block_error(std::string_view text) {
  const std::string_view whole = text;
  if (take(text, "Buffer I/O error on dev")) {
    take(text, "ice");
    if (!take(text, " ")) return std::nullopt;
    return disk_found(text.substr(0, text.find_first_of(", ")), whole);
  }
  if (!take(text, "blk_update_request: ")) take(text, "print_req_error: ");
  constexpr std::array<std::string_view, 4> kErrors = {
      "I/O error, dev ", "critical medium error, dev ", "critical target error, dev ",
      "protection error, dev "};
  for (const std::string_view error : kErrors)
    if (take(text, error)) return disk_found(text.substr(0, text.find(',')), whole);
  return std::nullopt;
}

std::optional<Finding> file_system_error(std::string_view text) {
  const std::string_view whole = text;
  for (const std::string_view front :
       {"EXT4-fs error (device ", "EXT3-fs error (device ", "EXT2-fs error (device ",
        "BTRFS error (device ", "BTRFS critical (device ", "F2FS-fs (device "})
    if (take(text, front)) {
      // "BTRFS error (device sda1: state EA): ..."
      const auto name = take_until(text, ")");
      return name ? disk_found(name->substr(0, name->find(':')), whole) : std::nullopt;
    }
  if (take(text, "EXT4-fs (")) {
    const auto name = take_until(text, "): ");
    if (!name || !text.starts_with("Remounting filesystem read-only")) return std::nullopt;
    return disk_found(*name, whole);
  }
  if (take(text, "XFS (")) {
    const auto name = take_until(text, "): ");
    if (!name ||
        !contains_any(text, {"Corruption", "log I/O error", "metadata I/O error", "Internal error",
                             "Shutting down filesystem", "Filesystem has been shut down"}))
      return std::nullopt;
    return disk_found(*name, whole);
  }
  return std::nullopt;
}

/// "nvme nvme0: I/O 12 QID 3 timeout, aborting".
std::optional<Finding> nvme_error(std::string_view text) {
  const std::string_view whole = text;
  if (!take(text, "nvme ")) return std::nullopt;
  const auto name = take_until(text, ": ");
  if (!name || !name->starts_with("nvme") ||
      !contains_any(text, {" timeout, ", "controller is down", "Device not ready",
                           "Removing after probe failure", "Disabling device after reset failure"}))
    return std::nullopt;
  return disk_found(*name, whole);
}

std::optional<Finding> oom_kill(std::string_view text) {
  const std::string_view whole = text;
  if (!take(text, "Out of memory: Kill") && !take(text, "Memory cgroup out of memory: Kill"))
    return std::nullopt;
  take(text, "ed");
  if (!take(text, " process ") || !take_number<unsigned>(text)) return std::nullopt;
  return found(Kind::oom_kill, "", whole);
}

/// "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out", and similar adapter messages.
std::optional<Finding> adapter_error(std::string_view text) {
  const std::string_view whole = text;
  if (take(text, "NETDEV WATCHDOG: ")) {
    const auto name = take_until(text, " ");
    if (!name || !is_device_name(*name) || !text.contains("timed out")) return std::nullopt;
    return found(Kind::link_stall, *name, whole);
  }
  if (!take(text, "mlx5_core ")) return std::nullopt;
  const auto name = take_until(text, ": ");
  const std::string address = name ? pci_address(*name) : std::string();
  if (address.empty() || !text.contains("health compromised")) return std::nullopt;
  return found(Kind::link_stall, address, whole);
}

/// "pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0".
std::optional<Finding> pcie_error(std::string_view text) {
  const std::string_view whole = text;
  if (!take(text, "pcieport ")) return std::nullopt;
  const auto name = take_until(text, ": ");
  const std::string address = name ? pci_address(*name) : std::string();
  if (address.empty() || !take(text, "AER: ")) return std::nullopt;
  take(text, "Multiple ");
  if (!take(text, "Uncorrect")) return std::nullopt;
  Finding finding = found(Kind::pcie, address, whole);
  finding.fatal = text.contains("(Fatal)");
  return finding;
}

std::optional<Finding> storage_error(std::string_view text) {
  const std::string_view whole = text;
  if (!take(text, "nfs: server ")) return std::nullopt;
  const auto server = take_until(text, " ");
  if (!server || !text.starts_with("not responding")) return std::nullopt;
  return found(Kind::storage, plain(*server, kMaxDeviceBytes), whole);
}

}  // namespace

std::optional<Finding> other_finding(std::string_view text) {
  for (const auto reader : {machine_check, block_error, file_system_error, nvme_error, oom_kill,
                            adapter_error, pcie_error, storage_error})
    if (std::optional<Finding> finding = reader(text)) return finding;
  return std::nullopt;
}

}  // namespace sortie::health
