#include "launcher/check/present.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "common/base/quantity.h"
#include "common/config/hostlist.h"
#include "launcher/check/gpus.h"
#include "launcher/host/fold_failures.h"

namespace sortie::launcher::check {
namespace {

constexpr std::size_t kMaxHeading = 24;
constexpr std::size_t kGap = 2;
constexpr char kBetween = '\x1f';  // separates reason and fix

std::string colored(const std::string& text, Verdict verdict, bool color) {
  if (!color || verdict == Verdict::none) return text;
  const char* const code = verdict == Verdict::pass   ? "32"
                           : verdict == Verdict::warn ? "33"
                                                      : "1;31";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

std::string folded(const std::vector<std::string>& names) {
  std::string text = config::fold_host_names(names);
  if (names.size() > 1) text += fmt::format(" ({})", names.size());
  return text;
}

std::string heading(const std::vector<std::string>& names) {
  std::string text = config::fold_host_names(names);
  const std::string count = names.size() > 1 ? fmt::format(" ({})", names.size()) : "";
  if (text.size() + count.size() > kMaxHeading)
    text = text.substr(0, kMaxHeading - count.size() - 2) + "..";
  return text + count;
}

struct Column {
  std::vector<std::string> hosts;
  const std::vector<Finding>* findings = nullptr;  // of any of them: all verdicts are equal
};

std::vector<Column> columns_of(const std::vector<HostResult>& hosts,
                               const std::vector<std::vector<Finding>>& findings) {
  std::vector<Column> columns;
  std::map<std::vector<Verdict>, std::size_t> by_verdicts;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    std::vector<Verdict> verdicts;
    for (const Finding& finding : findings[i]) verdicts.push_back(finding.verdict);
    const auto [at, is_new] = by_verdicts.try_emplace(std::move(verdicts), columns.size());
    if (is_new) columns.push_back({{}, &findings[i]});
    columns[at->second].hosts.push_back(hosts[i].host);
  }
  return columns;
}

std::size_t name_width(const std::vector<Finding>& findings) {
  std::size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.check.size());
  return width;
}

/// Prints as many columns as fit side by side, and the rest in further tables below.
std::string table(const std::vector<Column>& columns, const PresentOptions& options) {
  std::string text;
  std::size_t begin = 0;
  while (begin < columns.size()) {
    const std::size_t names = name_width(*columns[begin].findings);
    std::size_t end = begin, used = names;
    std::vector<std::string> headings;
    for (; end < columns.size(); ++end) {
      headings.push_back(heading(columns[end].hosts));
      used += kGap + std::max<std::size_t>(4, headings.back().size());
      if (used > options.width && end > begin) {
        headings.pop_back();
        break;
      }
    }
    text += std::string(names, ' ');
    for (const std::string& name : headings) text += fmt::format("  {:<4}", name);
    text += '\n';
    for (std::size_t row = 0; row < columns[begin].findings->size(); ++row) {
      std::string line = fmt::format("{:<{}}", (*columns[begin].findings)[row].check, names);
      for (std::size_t i = begin; i < end; ++i) {
        const Verdict verdict = (*columns[i].findings)[row].verdict;
        const std::string cell(verdict_name(verdict));
        line += "  " + colored(cell, verdict, options.color);
        if (i + 1 < end)
          line +=
              std::string(std::max<std::size_t>(4, headings[i - begin].size()) - cell.size(), ' ');
      }
      text += line + '\n';
    }
    text += '\n';
    begin = end;
  }
  return text;
}

/// Prints each reason once, with its hosts; failures first.
std::string details(const std::vector<HostResult>& hosts,
                    const std::vector<std::vector<Finding>>& findings,
                    const PresentOptions& options) {
  std::string text;
  std::vector<Verdict> order = {Verdict::fail, Verdict::warn};
  if (options.verbose) order.push_back(Verdict::pass);
  const std::size_t rows = findings.empty() ? 0 : findings.front().size();
  for (const Verdict verdict : order) {
    for (std::size_t row = 0; row < rows; ++row) {
      std::vector<std::pair<std::string, std::string>> failures;
      for (std::size_t i = 0; i < hosts.size(); ++i)
        if (const Finding& finding = findings[i][row]; finding.verdict == verdict)
          failures.emplace_back(hosts[i].host,
                                fmt::format("{}{}{}", finding.reason, kBetween, finding.fix));
      for (const FoldedFailure& failure :
           verdict == Verdict::pass ? fold_equal(failures) : fold_failures(failures)) {
        const std::size_t between = failure.text.find(kBetween);
        text += fmt::format(
            "{} {}: {}: {}\n", colored(std::string(verdict_name(verdict)), verdict, options.color),
            findings.front()[row].check, folded(failure.hosts), failure.text.substr(0, between));
        if (const std::string fix = failure.text.substr(between + 1); !fix.empty())
          text += fmt::format("     fix: {}\n", fix);
      }
    }
  }
  return text;
}

Verdict worst_of(const std::vector<Finding>& findings) {
  Verdict verdict = Verdict::pass;
  for (const Finding& finding : findings) verdict = std::max(verdict, finding.verdict);
  return verdict;
}

std::string lower(Verdict verdict) {
  std::string name(verdict_name(verdict));
  if (verdict == Verdict::none) return "none";
  std::ranges::transform(name, name.begin(), [](char c) { return static_cast<char>(c | 0x20); });
  return name;
}

/// Puts what is known; an unknown number is left out.
void put_known(nlohmann::ordered_json& out, const char* key, std::uint64_t value) {
  if (value > 0) out[key] = value;
}
void put_known(nlohmann::ordered_json& out, const char* key, const std::string& value) {
  if (!value.empty()) out[key] = value;
}

nlohmann::ordered_json gpu_json(const OneGpu& gpu) {
  nlohmann::ordered_json out = {{"name", gpu.name}};
  put_known(out, "compute_capability", gpu.compute_capability);
  put_known(out, "memory_mib", gpu.memory_mib);
  put_known(out, "sm_clock_mhz", gpu.sm_clock_mhz);
  put_known(out, "max_sm_clock_mhz", gpu.max_sm_clock_mhz);
  put_known(out, "app_clock_mhz", gpu.app_clock_mhz);
  put_known(out, "default_app_clock_mhz", gpu.default_app_clock_mhz);
  put_known(out, "power_limit_w", gpu.power_limit_w);
  put_known(out, "default_power_limit_w", gpu.default_power_limit_w);
  if (gpu.persistence) out["persistence"] = *gpu.persistence;
  return out;
}

nlohmann::ordered_json trainer_json(const TrainerFacts& facts) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  put_known(out, "error", facts.error);
  put_known(out, "version", facts.version);
  put_known(out, "build", facts.build);
  put_known(out, "isa", facts.isa);
  put_known(out, "driver_cuda", facts.driver_cuda);
  put_known(out, "cuda", facts.cuda);
  put_known(out, "cublaslt", facts.cublaslt);
  put_known(out, "nccl", facts.nccl);
  put_known(out, "problem", facts.problem);
  out["gpus"] = facts.gpus.size();
  return out;
}

nlohmann::ordered_json host_json(const HostResult& host, const std::vector<Finding>& findings) {
  nlohmann::ordered_json out = {{"host", host.host},
                                {"verdict", lower(worst_of(findings))},
                                {"address", host.address},
                                {"slots", host.slots}};
  if (!host.through.empty()) out["through"] = host.through;
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const Stage& stage : host.stages)
    stages.push_back({{"stage", stage.name}, {"ms", stage.ms}});
  out["stages"] = stages;
  if (host.error)
    out["error"] = {{"stage", error_code_name(host.error->code)}, {"message", host.error->message}};
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const Finding& finding : findings)
    checks.push_back({{"check", finding.check},
                      {"verdict", lower(finding.verdict)},
                      {"reason", finding.reason},
                      {"fix", finding.fix}});
  out["checks"] = checks;
  if (host.report.gpus) {
    put_known(out, "driver", host.report.gpus->driver_version);
    nlohmann::ordered_json gpus = nlohmann::ordered_json::array();
    for (const OneGpu& gpu : host.report.gpus->gpus) gpus.push_back(gpu_json(gpu));
    out["gpus"] = gpus;
  }
  if (host.report.trainer) out["trainer"] = trainer_json(*host.report.trainer);
  nlohmann::ordered_json links = nlohmann::ordered_json::array();
  for (const PeerFacts& peer : host.report.peers)
    links.push_back({{"to", peer.name},
                     {"ok", peer.error.empty()},
                     {"error", peer.error},
                     {"connect_us", peer.connect_us},
                     {"round_trip_us", peer.round_trip_us},
                     {"path_mtu", peer.mtu},
                     {"interface_mtu", peer.own_mtu}});
  out["links"] = links;
  if (const auto& sent = host.report.bandwidth)
    out["bandwidth"] = {
        {"to", sent->name}, {"error", sent->error}, {"bytes", sent->bytes}, {"us", sent->us}};
  return out;
}

/// Hosts that were reached through an OpenSSH master.
std::string masters_text(const std::vector<HostResult>& hosts) {
  std::vector<std::string> names;
  for (const HostResult& host : hosts)
    if (!host.through.empty()) names.push_back(host.host);
  return names.empty() ? "" : fmt::format("through an ssh master: {}\n", folded(names));
}

/// The GPUs of the hosts, with the versions of driver and libraries; equal hosts on one line.
std::string gpus_text(const std::vector<HostResult>& hosts) {
  std::vector<std::pair<std::string, std::string>> lines;
  for (const HostResult& host : hosts) {
    const std::string gpus = gpu_text(host), libraries = library_text(host);
    if (!gpus.empty())
      lines.emplace_back(host.host,
                         fmt::format("{}{}{}", gpus, libraries.empty() ? "" : ", ", libraries));
  }
  std::string text;
  for (const FoldedFailure& line : fold_equal(lines))
    text += fmt::format("gpus of {}: {}\n", folded(line.hosts), line.text);
  return text;
}

}  // namespace

std::string check_text(const std::vector<HostResult>& hosts,
                       const std::vector<std::vector<Finding>>& findings,
                       const PresentOptions& options) {
  std::string text = table(columns_of(hosts, findings), options) +
                     details(hosts, findings, options) + gpus_text(hosts) + masters_text(hosts);
  std::map<Verdict, std::size_t> counts;
  for (const auto& list : findings) ++counts[worst_of(list)];
  text += fmt::format("{}: {} passed, {} with warnings, {} failed\n", counted(hosts.size(), "host"),
                      counts[Verdict::pass], counts[Verdict::warn], counts[Verdict::fail]);
  return text;
}

std::string check_json_text(const std::vector<HostResult>& hosts,
                            const std::vector<std::vector<Finding>>& findings, double seconds,
                            const nlohmann::ordered_json* comm,
                            const nlohmann::ordered_json* sites) {
  const bool slow = comm != nullptr && (*comm)["verdict"] == "fail";
  nlohmann::ordered_json out = {{"schema", "sortie/check/1"},
                                {"verdict", slow ? "fail" : lower(worst(findings))},
                                {"seconds", seconds}};
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < hosts.size(); ++i) list.push_back(host_json(hosts[i], findings[i]));
  out["hosts"] = list;
  if (comm != nullptr) out["comm"] = *comm;
  if (sites != nullptr) out["sites"] = *sites;
  return json_text(out, 2) + '\n';
}

int check_exit_code(Verdict verdict) {
  return verdict == Verdict::fail ? 2 : verdict == Verdict::warn ? 1 : 0;
}

}  // namespace sortie::launcher::check
