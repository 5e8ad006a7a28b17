// Checks of GPUs: of one host by itself, and of hosts compared with each other. What the trainer
// refuses at its start is a failure; what only slows it is a warning.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <functional>

#include "common/cpu/cpu_list.h"
#include "launcher/check/compare.h"
#include "launcher/check/gpus.h"

namespace sortie::launcher::check {
namespace {

/// The oldest NVIDIA driver that supports the CUDA version of Sortie's GPU code.
constexpr std::uint64_t kLeastDriver = 580;

struct Complaint {
  Verdict verdict;
  std::string text, fix;
};
using Complaints = std::vector<Complaint>;

std::uint64_t series_of(const std::string& driver) {
  std::uint64_t series = 0;
  std::from_chars(driver.data(), driver.data() + driver.size(), series);
  return series;
}

std::string driver_of(const HostResult& host) {
  return host.report.gpus ? host.report.gpus->driver_version : "";
}

std::string models_text(const HostResult& host, const Expectations& expect) {
  return fmt::format("{}", fmt::join(gpu_models(host, expect), " and "));
}

/// The lowest of the highest clocks of its GPUs, "1980 MHz"; "" if unknown.
std::string clock_of(const HostResult& host, const Expectations& expect) {
  std::uint64_t least = 0;
  for (const auto& [number, gpu] : used_gpus(host, expect))
    if (gpu.max_sm_clock_mhz > 0)
      least = least == 0 ? gpu.max_sm_clock_mhz : std::min(least, gpu.max_sm_clock_mhz);
  return least == 0 ? "" : fmt::format("{} MHz", least);
}

/// Drivers that are too old, or differ. If the trainer sees GPUs, their driver is new enough, or
/// CUDA's compatibility package is installed.
void compare_driver(const HostResult& host, const Expectations& expect, const Usual& usual,
                    Complaints& complaints) {
  const std::string own = driver_of(host);
  if (own.empty()) return;
  const bool works = host.report.trainer && !host.report.trainer->gpus.empty();
  const bool of_other_program = expect.device.empty() && !expect.program.empty();
  if (series_of(own) < kLeastDriver && !works && !of_other_program)
    complaints.push_back({expect.device == "cuda" ? Verdict::fail : Verdict::warn,
                          fmt::format("the trainer on GPUs needs driver {} or newer", kLeastDriver),
                          "install a newer NVIDIA driver there"});
  else if (usual.differs(host, own))
    complaints.push_back({Verdict::warn,
                          fmt::format("driver {} on {}", usual.value(host), usual.hosts(host)),
                          "install one NVIDIA driver on all hosts"});
}

/// Replicas on different GPUs would differ in their last bits, so the trainer refuses them.
void compare_models(const HostResult& host, const Expectations& expect, const Usual& usual,
                    Complaints& complaints) {
  const bool refused = !expect.device.empty();
  const std::vector<std::string> models = gpu_models(host, expect);
  if (refused && models.size() > 1)
    complaints.push_back({Verdict::fail, "the ranks of a run need GPUs of one model",
                          "set its slots to the ids of GPUs of one model"});
  else if (usual.differs(host, models_text(host, expect)))
    complaints.push_back(
        {refused ? Verdict::fail : Verdict::warn,
         fmt::format("{} on {}{}", usual.value(host), usual.hosts(host),
                     refused ? ", and the ranks of a run need GPUs of one model" : ""),
         "leave the host out, or use hosts with GPUs of one model"});
}

/// Names GPUs whose value is below what it should be: "power limit 400 W instead of 700 W on GPU
/// 0-3".
void find_lowered(const std::vector<UsedGpu>& gpus, const char* what, const char* unit,
                  std::uint64_t OneGpu::*value, std::uint64_t OneGpu::*normal, const char* fix,
                  Complaints& complaints) {
  cpu::CpuList lowered;
  std::uint64_t least = 0, usual = 0;
  for (const auto& [number, gpu] : gpus) {
    if (gpu.*value == 0 || gpu.*value >= gpu.*normal) continue;
    least = lowered.empty() ? gpu.*value : std::min(least, gpu.*value);
    usual = std::max(usual, gpu.*normal);
    lowered.push_back(number);
  }
  if (lowered.empty()) return;
  std::ranges::sort(lowered);
  complaints.push_back({Verdict::warn,
                        fmt::format("{} {} {} instead of {} {} on GPU {}", what, least, unit, usual,
                                    unit, cpu::cpu_list_text(lowered)),
                        fix});
}

/// What makes all ranks wait for this host.
void find_slow(const HostResult& host, const Expectations& expect, const Usual& models,
               const Usual& clocks, Complaints& complaints) {
  const std::vector<UsedGpu> gpus = used_gpus(host, expect);
  if (const std::string own = clock_of(host, expect);
      clocks.differs(host, own) && !models.differs(host, models_text(host, expect)))
    complaints.push_back({Verdict::warn,
                          fmt::format("clocks of at most {}, and {} on {}", own, clocks.value(host),
                                      clocks.hosts(host)),
                          "compare nvidia-smi -q -d CLOCK there and on the other hosts"});
  find_lowered(gpus, "application clocks of", "MHz", &OneGpu::app_clock_mhz,
               &OneGpu::default_app_clock_mhz, "nvidia-smi -rac there resets the clocks",
               complaints);
  find_lowered(gpus, "a power limit of", "W", &OneGpu::power_limit_w,
               &OneGpu::default_power_limit_w, "nvidia-smi -pl there sets the limit", complaints);
  const bool off = std::ranges::any_of(
      gpus, [](const UsedGpu& used) { return used.gpu.persistence && !*used.gpu.persistence; });
  if (off)
    complaints.push_back(
        {Verdict::warn,
         "persistence mode is off: every start initializes the GPUs, and their settings get lost",
         "start nvidia-persistenced there, or nvidia-smi -pm 1"});
}

/// Adds the complaints to a finding, the worst first.
void add_complaints(Finding& finding, Complaints complaints) {
  std::ranges::stable_sort(complaints, std::greater(), &Complaint::verdict);
  std::vector<std::string> texts, fixes;
  if (finding.verdict > Verdict::pass) fixes.push_back(finding.fix);
  for (const Complaint& complaint : complaints) {
    finding.verdict = std::max(finding.verdict, complaint.verdict);
    texts.push_back(complaint.text);
    if (std::ranges::find(fixes, complaint.fix) == fixes.end()) fixes.push_back(complaint.fix);
  }
  if (complaints.empty()) return;
  finding.reason += fmt::format(": {}", fmt::join(texts, "; "));
  finding.fix = fmt::format("{}", fmt::join(fixes, "; "));
}

Finding judge_gpus_of(const HostResult& host, const Expectations& expect, bool others_have) {
  const GpuFacts& facts = *host.report.gpus;
  const char* const fix = "see nvidia-smi and dmesg there, and that its user may open /dev/nvidia*";
  // Ranks on CPUs do not touch GPUs.
  const Verdict broken = expect.device == "cpu" ? Verdict::warn : Verdict::fail;
  if (!facts.smi_error.empty())
    return {"gpus", broken, fmt::format("{}: {}", facts.smi, facts.smi_error), fix};
  const std::size_t count = gpu_count(host);
  if (count == 0 && expect.device == "cuda")
    return {"gpus", Verdict::fail, "none, and trainer.device = \"cuda\" needs one for each rank",
            "use hosts with NVIDIA GPUs, or set trainer.device = \"cpu\""};
  if (count == 0 && facts.smi.empty() && (!others_have || expect.device == "cpu"))
    return {"gpus", Verdict::pass, "none: slots are shares of the cores", ""};
  if (count == 0 && others_have && expect.device == "auto")
    return {"gpus", Verdict::fail,
            "none, and other hosts have some: the ranks of a run compute all on GPUs, or all on "
            "CPUs",
            "leave the host out, or set trainer.device = \"cpu\""};
  if (count == 0)
    return {"gpus", Verdict::warn,
            others_have ? "none, and other hosts have some" : "none, but nvidia-smi is installed",
            fix};
  if (!facts.smi.empty() && facts.driver > count)
    return {"gpus", broken,
            fmt::format("nvidia-smi lists {} of the {} that the driver has", count, facts.driver),
            fix};
  const int last = host.slots.empty() ? 0 : std::ranges::max(host.slots);
  std::string text = gpu_text(host);
  if (static_cast<std::size_t>(last) >= count && expect.device != "cpu")
    return {"gpus", expect.device == "cuda" ? Verdict::fail : Verdict::warn,
            fmt::format("{}, but slot {} is used", text, last),
            fmt::format("slots={} or a list of ids below {}: its rank would find no GPU", count,
                        count)};
  return {"gpus", Verdict::pass, std::move(text), ""};
}

}  // namespace

std::vector<Finding> judge_gpus(const std::vector<HostResult>& hosts, const Expectations& expect) {
  std::vector<Finding> findings = blank(hosts, "gpus");
  const Usual drivers(hosts, driver_of);
  const Usual models(hosts, [&](const HostResult& host) { return models_text(host, expect); });
  const Usual clocks(hosts, [&](const HostResult& host) { return clock_of(host, expect); });
  const Usual having(hosts, [](const HostResult& host) {
    return gpu_count(host) > 0 ? std::string("some") : std::string();
  });
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const HostResult& host = hosts[i];
    if (!host.report.gpus) continue;
    findings[i] = judge_gpus_of(host, expect, !having.value(host).empty());
    if (findings[i].verdict == Verdict::fail || gpu_count(host) == 0 || expect.device == "cpu")
      continue;
    Complaints complaints;
    compare_models(host, expect, models, complaints);
    compare_driver(host, expect, drivers, complaints);
    find_slow(host, expect, models, clocks, complaints);
    add_complaints(findings[i], std::move(complaints));
  }
  return findings;
}

}  // namespace sortie::launcher::check
