#include "common/health/judge.h"

#include <fmt/format.h>

#include "common/health/xid.h"

namespace sortie::health {
namespace {

std::string seconds(double value) {
  return fmt::format("{:.3g} s", value);
}

struct Advice {
  Class kind;
  Action action;
  Remedy remedy;
  std::string_view words;
};

/// Advice for a value of NVML; nullptr for "none" and for unknown values.
const Advice* advice_of(int recovery) {
  using enum Class;
  using enum Action;
  using enum Remedy;
  // clang-format off
  static constexpr Advice kAdvice[] = {
      {info, ignore, none, "no action"},
      {hardware, cordon, reset_gpu, "a reset of the GPU"},
      {hardware, cordon, reboot, "a reboot of the host"},
      {link, drain, reset_gpu, "an end of the jobs that use it together with its peers"},
      {hardware, drain, reset_gpu, "an end of its jobs and then a reset of the GPU"},
      {link, drain, software, "a new set-up of the NVLink domain (IMEX)"},
      {hardware, cordon, reboot, "a reset of its bus"},
      {hardware, cordon, reboot, "a reboot of the system"},
  };
  // clang-format on
  if (recovery <= kRecoveryNone || recovery > kRecoverySystemReboot) return nullptr;
  return &kAdvice[recovery];
}

Judgement of_xid(const Finding& finding) {
  const Xid& entry = xid(finding.code);
  Judgement judgement{entry.kind, entry.action, entry.remedy,
                      fmt::format("XID {}: {}", finding.code, entry.name), entry.inherits};
  // The newer NVLink codes have their severity in the text.
  if (entry.first == 144 && finding.fatal) {
    judgement.action = *finding.fatal ? Action::cordon : Action::watch;
    judgement.remedy = *finding.fatal ? Remedy::reset_gpu : Remedy::nvlink;
  }
  if (!finding.recovery) return judgement;
  if (const Advice* advice = advice_of(*finding.recovery)) {
    judgement.kind = std::max(judgement.kind, advice->kind);
    judgement.action = advice->action;
    judgement.remedy = advice->remedy;
    judgement.what += fmt::format("; the driver asks for {}", advice->words);
    judgement.inherits = false;
  } else if (*finding.recovery == kRecoveryNone && judgement.action == Action::cordon) {
    judgement.action = Action::restart;
    judgement.what += "; the driver asks for no action";
  }
  return judgement;
}

Judgement of_recovery(const Finding& finding) {
  const Advice* advice = advice_of(finding.recovery.value_or(kRecoveryNone));
  if (!advice) return {Class::info, Action::ignore, Remedy::none, "the driver asks for no action"};
  return {advice->kind, advice->action, advice->remedy,
          fmt::format("the driver asks for {}", advice->words)};
}

/// For errors that may be corrected or fatal; an unknown severity counts as corrected.
Judgement graded(const Finding& finding, std::string_view corrected, std::string_view fatal,
                 Remedy remedy) {
  if (finding.fatal.value_or(false))
    return {Class::hardware, Action::restart, remedy, std::string(fatal)};
  return {Class::hardware, Action::watch, Remedy::none, std::string(corrected)};
}

std::string space_text(const Finding& finding) {
  if (finding.value < 0) return "no inodes are left";
  return fmt::format("nearly full: {:.0f} MiB are left", finding.value / (1 << 20));
}

}  // namespace

Judgement judge(const Finding& finding) {
  using enum Class;
  using enum Action;
  using enum Remedy;
  switch (finding.kind) {
    case Kind::sources:
      return {info, ignore, none, "watched"};
    case Kind::xid:
      return of_xid(finding);
    case Kind::sxid:
      if (finding.fatal.value_or(false))
        return {link, cordon, reboot, fmt::format("SXID {}: fatal NVSwitch error", finding.code)};
      return {link, watch, none, fmt::format("SXID {}: NVSwitch error", finding.code)};
    case Kind::gpu_lost:
      return {hardware, cordon, reboot, "the GPU is lost"};
    case Kind::recovery:
      return of_recovery(finding);
    case Kind::ecc:
      return {hardware, restart, reset_gpu,
              fmt::format("{:.0f} uncorrectable memory errors", finding.value)};
    case Kind::ecc_corrected:
      return {hardware, watch, none, fmt::format("{:.0f} corrected memory errors", finding.value)};
    case Kind::remap_pending:
      return {hardware, drain, reset_gpu, "a memory row waits for a reset to be remapped"};
    case Kind::remap_failed:
      return {hardware, cordon, reset_gpu, "memory rows can not be remapped"};
    case Kind::throttle:
      return {hardware, watch, inspect,
              fmt::format("slowed down by heat or power for {}", seconds(finding.value))};
    case Kind::nvlink_down:
      return {link, restart, nvlink, fmt::format("NVLink {} is down", finding.code)};
    case Kind::driver_silent:
      return {driver, restart, reboot,
              fmt::format("the GPU driver has not answered for {}", seconds(finding.value))};
    case Kind::machine_check:
      return graded(finding, "machine check, corrected or of unknown weight",
                    "uncorrected machine check", inspect);
    case Kind::pcie:
      return graded(finding, "PCIe error", "fatal PCIe error", inspect);
    case Kind::disk:
      return {hardware, restart, Remedy::storage, "disk or file system error"};
    case Kind::storage:
      return {resource, watch, none, "storage does not answer"};
    case Kind::oom_kill:
      return {resource, watch, memory, "the OOM killer ended a process"};
    case Kind::link_blip:
      return {info, watch, none, "the link was down for a moment"};
    case Kind::link_down:
      return {link, restart, network,
              fmt::format("the link has been down for {}", seconds(finding.value))};
    case Kind::link_flap:
      return {link, cordon, network,
              fmt::format("the link went down {:.0f} times within five minutes", finding.value)};
    case Kind::link_stall:
      return {link, restart, network, "the network adapter does not send"};
    case Kind::clock_step:
      return {resource, watch, Remedy::clock,
              fmt::format("the clock was set by {:+.3g} s", finding.value)};
    case Kind::space:
      return {resource, watch, Remedy::space, space_text(finding)};
    case Kind::dropped:
      return {info, watch, none, fmt::format("{} findings were left out", finding.count)};
    case Kind::helper_lost:
      return {info, watch, none, "sortie-health has ended: this host is no longer monitored"};
  }
  return {};
}

std::string device_text(const Finding& finding) {
  if (!finding.gpu) return finding.device;
  return finding.device.empty() ? fmt::format("GPU {}", *finding.gpu)
                                : fmt::format("GPU {} ({})", *finding.gpu, finding.device);
}

std::string remedy_command(Remedy remedy, std::string_view host, const Finding& finding) {
  const std::string gpu = !pci_address(finding.device).empty() ? pci_address(finding.device)
                          : finding.gpu                        ? std::to_string(*finding.gpu)
                                                               : std::string();
  // The device's name, if it consists of characters that have no meaning to a shell.
  const bool word = !finding.device.empty() && finding.device.front() != '-' &&
                    finding.device.find_first_not_of(
                        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRST"
                        "UVWXYZ0123456789._:-") == std::string::npos;
  const std::string where = host == "localhost" ? std::string() : fmt::format("ssh {} ", host);
  switch (remedy) {
    case Remedy::reset_gpu:
      return gpu.empty() ? std::string() : where + "sudo nvidia-smi --gpu-reset -i " + gpu;
    case Remedy::reboot:
      return where + "sudo systemctl reboot";
    case Remedy::nvlink:
      return gpu.empty() ? where + "nvidia-smi nvlink --status"
                         : where + "nvidia-smi nvlink --status -i " + gpu;
    case Remedy::storage:
      return word ? where + "sudo smartctl -a /dev/" + finding.device : std::string();
    case Remedy::network:
      if (const std::string pci = pci_address(finding.device); !pci.empty())
        return where + "lspci -vv -s " + pci;
      return word ? where + "ip -s link show dev " + finding.device : std::string();
    case Remedy::space:
      return where + "df -h";
    case Remedy::clock:
      return where + "timedatectl";
    case Remedy::none:
    case Remedy::check_program:
    case Remedy::inspect:
    case Remedy::software:
    case Remedy::memory:
      return {};
  }
  return {};
}

}  // namespace sortie::health
