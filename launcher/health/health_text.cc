#include "launcher/health/health_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "common/config/hostlist.h"
#include "launcher/console/console.h"

namespace sortie::launcher {
namespace {

constexpr std::size_t kMostRows = 5, kMostTimes = 40, kMostReported = 64;

/// Incidents to show to the user: those of devices that the job uses first, then the worst, then
/// the latest.
std::vector<HealthIncident> worth_telling(const HealthView& view, const std::string& host) {
  std::vector<HealthIncident> told = view.incidents(host);
  std::erase_if(told, [](const HealthIncident& incident) {
    return incident.judgement.action == health::Action::ignore;
  });
  std::ranges::stable_sort(told, std::ranges::greater(), [](const HealthIncident& incident) {
    return std::tuple(incident.used, incident.judgement.action, incident.judgement.kind,
                      incident.last_at);
  });
  return told;
}

std::string line_of(const HealthIncident& incident) {
  std::string line = printable(incident.text());
  if (!incident.used) line += " (this job does not use it)";
  return line;
}

}  // namespace

std::string health_rows(const HealthView& view, const std::string& host) {
  std::string rows;
  std::size_t count = 0;
  const auto told = worth_telling(view, host);
  for (const HealthIncident& incident : told) {
    if (++count > kMostRows) {
      rows += fmt::format("  health: and {} more; see `sortie report`\n", told.size() - kMostRows);
      break;
    }
    rows += fmt::format("  health: {}: {}\n", health::action_name(incident.judgement.action),
                        line_of(incident));
    const std::string command = incident.command(host);
    if (!command.empty()) rows += fmt::format("          {}\n", command);
  }
  return rows;
}

std::vector<std::pair<double, std::string>> health_times(const HealthView& view) {
  std::vector<std::pair<double, std::string>> times;
  for (const std::string& host : view.hosts())
    for (const HealthIncident& incident : view.incidents(host))
      if (incident.judgement.action >= health::Action::drain)
        times.emplace_back(incident.first_at,
                           fmt::format("{}: {}", printable(host), line_of(incident)));
  std::ranges::stable_sort(times, {}, &std::pair<double, std::string>::first);
  if (times.size() > kMostTimes) times.resize(kMostTimes);
  return times;
}

std::string health_report(const HealthView& view) {
  std::string out;
  std::size_t count = 0;
  for (const std::string& host : view.hosts())
    for (const HealthIncident& incident : worth_telling(view, host)) {
      if (++count > kMostReported) continue;
      out += fmt::format("  {}: {}: {}\n", printable(host),
                         health::action_name(incident.judgement.action), line_of(incident));
      if (!incident.finding.text.empty()) out += "    " + printable(incident.finding.text) + "\n";
      const std::string command = incident.command(host);
      if (!command.empty()) out += "    to repair it: " + command + "\n";
    }
  if (count > kMostReported)
    out += fmt::format("  and {} more; they are in events.jsonl\n", count - kMostReported);
  if (!out.empty()) out = "health of hosts:\n" + out;
  // Many hosts have the same sources.
  std::map<std::string, std::vector<std::string>> alike;
  for (const auto& [host, sources] : view.sources()) alike[sources].push_back(host);
  if (!alike.empty()) out += "health was watched by:\n";
  for (const auto& [sources, hosts] : alike)
    out += fmt::format("  {}: {}\n", config::fold_host_names(hosts), printable(sources));
  return out;
}

nlohmann::ordered_json incidents_json(const HealthView& view, const std::string& host) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const HealthIncident& incident : view.incidents(host)) {
    nlohmann::ordered_json json = {{"class", health::class_name(incident.judgement.kind)},
                                   {"action", health::action_name(incident.judgement.action)},
                                   {"kind", health::kind_name(incident.finding.kind)},
                                   {"what", incident.judgement.what},
                                   {"device", incident.finding.device},
                                   {"text", incident.finding.text},
                                   {"at", incident.first_at},
                                   {"findings", incident.findings},
                                   {"used", incident.used}};
    if (incident.finding.gpu) json["gpu"] = *incident.finding.gpu;
    if (incident.finding.code != 0) json["code"] = incident.finding.code;
    if (const std::string command = incident.command(host); !command.empty())
      json["command"] = command;
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace sortie::launcher
