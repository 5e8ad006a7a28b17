#include "common/health/kernel_line.h"

#include "common/health/words.h"

namespace sortie::health {
namespace {

constexpr int kMostCode = 1'000'000;

/// The address in brackets: "PCI:0000:3b:00", "0000:3b:00", "PCI:0000:01:00 GPU-I:05".
std::string address_in(std::string_view brackets) {
  take(brackets, "PCI:");
  return pci_address(brackets.substr(0, brackets.find(' ')));
}

/// "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)".
std::optional<int> recovery_in(std::string_view text) {
  if (!take_until(text, "recovery action changed from ") || !take_until(text, " to 0x")) return {};
  const auto action = take_number<int>(text, 16);
  return action && *action <= kRecoverySystemReboot ? action : std::nullopt;
}

std::optional<bool> weight_in(std::string_view text) {
  if (text.contains("Nonfatal") || text.contains("Non-fatal")) return false;
  if (text.contains(" Fatal") || text.contains(",Fatal")) return true;
  return std::nullopt;
}

std::optional<Finding> xid_finding(std::string_view text, std::string_view whole) {
  const auto brackets = take_until(text, "): ");
  if (!brackets) return std::nullopt;
  Finding finding{.kind = Kind::xid, .device = address_in(*brackets)};
  const auto code = take_number<int>(text);
  if (finding.device.empty() || !code || *code <= 0 || *code > kMostCode) return std::nullopt;
  if (!text.empty() && text.front() != ',' && text.front() != ' ') return std::nullopt;
  finding.code = *code;
  finding.text = whole;
  if (*code == 154) finding.recovery = recovery_in(text);
  if (*code >= 144 && *code <= 150) finding.fatal = weight_in(text);
  return finding;
}

/// "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 ...".
std::optional<Finding> switch_finding(std::string_view text, std::string_view whole) {
  if (!take_number<int>(text)) return std::nullopt;
  take(text, ":");
  if (!take(text, " SXid (")) return std::nullopt;
  const auto brackets = take_until(text, "): ");
  if (!brackets) return std::nullopt;
  Finding finding{.kind = Kind::sxid, .device = address_in(*brackets)};
  const auto code = take_number<int>(text);
  if (finding.device.empty() || !code || *code <= 0 || *code > kMostCode) return std::nullopt;
  finding.code = *code;
  finding.fatal = weight_in(text);
  finding.text = whole;
  return finding;
}

}  // namespace

std::optional<KernelRecord> parse_kernel_record(std::string_view record) {
  KernelRecord parsed;
  const auto priority = take_number<unsigned>(record);
  if (!priority || *priority > 0xffff || !take(record, ",")) return std::nullopt;
  const auto sequence = take_number<std::uint64_t>(record);
  if (!sequence || !take(record, ",")) return std::nullopt;
  if (!take_number<std::uint64_t>(record)) return std::nullopt;  // microseconds since boot
  // Flags, and any fields that later kernels add.
  const std::size_t end = record.find(';');
  if (end == record.npos || record.substr(0, end).contains('\n')) return std::nullopt;
  record.remove_prefix(end + 1);
  parsed.level = static_cast<int>(*priority & 7);
  parsed.facility = static_cast<int>(*priority >> 3);
  parsed.sequence = *sequence;
  parsed.text = record.substr(0, record.find('\n'));
  return parsed;
}

std::optional<Finding> nvidia_finding(std::string_view text) {
  const std::string_view whole = text;
  if (take(text, "nvidia-nvswitch")) return switch_finding(text, whole);
  if (!take(text, "NVRM: ")) return std::nullopt;
  if (take(text, "Xid (")) return xid_finding(text, whole);
  // "GPU 0000:3b:00.0: GPU has fallen off the bus."
  if (!take(text, "GPU ")) return std::nullopt;
  const auto address = take_until(text, ": GPU has fallen off the bus");
  if (!address) return std::nullopt;
  Finding finding{.kind = Kind::gpu_lost, .device = pci_address(*address)};
  if (finding.device.empty()) return std::nullopt;
  finding.text = whole;
  return finding;
}

std::optional<Finding> kernel_finding(std::string_view text) {
  std::optional<Finding> finding = nvidia_finding(text);
  if (!finding) finding = other_finding(text);
  if (!finding) return std::nullopt;
  finding->source = "kmsg";
  finding->text = plain(finding->text, kMaxTextBytes);
  return finding;
}

std::optional<Finding> record_finding(std::string_view record) {
  const auto parsed = parse_kernel_record(record);
  if (!parsed || parsed->facility != 0) return std::nullopt;
  return kernel_finding(parsed->text);
}

}  // namespace sortie::health
