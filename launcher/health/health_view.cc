#include "launcher/health/health_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "common/health/xid.h"

namespace sortie::launcher {
namespace {

/// Order of findings: the greater one is the more likely cause.
auto weight(const health::Judgement& judgement) {
  return std::tuple(judgement.kind, !judgement.inherits, judgement.action);
}

/// Whether two findings are about the same GPU (by index or by device) or the same other device.
bool same_device(const health::Finding& a, const health::Finding& b) {
  if (!a.device.empty() && a.device == b.device) return true;
  if (a.gpu || b.gpu) return a.gpu == b.gpu;
  return a.device.empty() && b.device.empty() && a.kind == b.kind;
}

std::optional<HealthIncident> worst_of(std::vector<HealthIncident> incidents) {
  if (incidents.empty()) return std::nullopt;
  return *std::ranges::max_element(incidents, {}, [](const HealthIncident& incident) {
    return std::tuple(incident.judgement.action, weight(incident.judgement));
  });
}

}  // namespace

std::string HealthIncident::text() const {
  const std::string device = health::device_text(finding);
  std::string text = device.empty() ? judgement.what : device + ": " + judgement.what;
  if (findings > 1) text += fmt::format(" ({} findings)", findings);
  return text;
}

std::string HealthIncident::command(const std::string& host) const {
  return health::remedy_command(judgement.remedy, host, finding);
}

void HealthView::set_gpus(const std::string& host, std::set<int> gpus) {
  gpus_[host] = std::move(gpus);
}

bool HealthView::uses(const std::string& host, const health::Finding& finding) const {
  const auto known = gpus_.find(host);
  return !finding.gpu || known == gpus_.end() || known->second.contains(*finding.gpu);
}

HealthView::Taken HealthView::take(const std::string& host, const health::Finding& finding,
                                   double at, std::optional<bool> used) {
  if (finding.kind == health::Kind::sources) sources_[host] = finding.text;
  std::deque<HealthIncident>& list = incidents_[host];
  const health::Judgement judgement = health::judge(finding);
  const auto known = std::ranges::find_if(list, [&](const HealthIncident& incident) {
    return at - incident.last_at <= health::kGroupSeconds && same_device(incident.finding, finding);
  });
  if (known == list.end()) {
    list.push_back({finding, judgement, at, at, finding.count, used.value_or(uses(host, finding))});
    if (list.size() > kMostIncidents) list.pop_front();
    return {list.back(), true, true};
  }
  known->last_at = std::max(known->last_at, at);
  known->findings += finding.count;
  if (!known->finding.gpu && finding.gpu) {
    known->finding.gpu = finding.gpu;
    known->finding.uuid = finding.uuid;
    known->used = used.value_or(uses(host, finding));
  }
  // The same error again, now with the recovery action that the driver requests.
  const bool informed = finding.kind == known->finding.kind &&
                        finding.code == known->finding.code && finding.recovery &&
                        !known->finding.recovery;
  if (!informed && weight(judgement) <= weight(known->judgement)) return {*known, false, false};
  known->finding = finding;
  known->judgement = judgement;
  return {*known, false, true};
}

std::optional<HealthIncident> HealthView::worst(const std::string& host, double now,
                                                double seconds) const {
  std::vector<HealthIncident> recent = incidents(host);
  std::erase_if(recent, [&](const HealthIncident& incident) {
    return incident.finding.kind == health::Kind::sources || now - incident.last_at > seconds;
  });
  return worst_of(std::move(recent));
}

std::vector<HealthIncident> HealthView::incidents(const std::string& host) const {
  const auto known = incidents_.find(host);
  if (known == incidents_.end()) return {};
  return {known->second.begin(), known->second.end()};
}

std::vector<std::string> HealthView::hosts() const {
  std::vector<std::string> hosts;
  for (const auto& [host, list] : incidents_)
    if (!list.empty()) hosts.push_back(host);
  return hosts;
}

std::string HealthView::sources(const std::string& host) const {
  const auto known = sources_.find(host);
  return known == sources_.end() ? std::string() : known->second;
}

std::optional<HardwareEvidence> explained_by_hardware(const HealthView& view,
                                                      const std::string& host, double attempt_begun,
                                                      double failed_at) {
  std::vector<HealthIncident> explaining = view.incidents(host);
  std::erase_if(explaining, [&](const HealthIncident& incident) {
    const bool lasting = incident.judgement.action == health::Action::cordon;
    const double from =
        lasting ? attempt_begun : std::max(attempt_begun, failed_at - kEvidenceBefore);
    return !incident.judgement.explains() || !incident.used || incident.last_at < from ||
           incident.first_at > failed_at + kEvidenceAfter;
  });
  const std::optional<HealthIncident> worst = worst_of(std::move(explaining));
  if (!worst) return std::nullopt;
  return HardwareEvidence{worst->judgement.kind, worst->judgement.action == health::Action::cordon,
                          worst->text(), worst->command(host), worst->first_at};
}

}  // namespace sortie::launcher
