// Attempt: health reports of hosts go to the journal, to the view by which failures are judged, and
// to the user if a report requires action.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/base/boot_clock.h"
#include "launcher/supervise/attempt.h"

namespace sortie::launcher {

void Attempt::on_health(Host& host, const wire::HealthEvent& event) {
  constexpr std::size_t kMostRefused = 20;
  if (superseded()) return;
  const std::string& name = host.plan->name;
  const double now = static_cast<double>(boot_ms()) / 1000;
  auto finding = host.health.take(event.json, now);
  if (!finding) {
    if (++health_refused_ <= kMostRefused)
      parts_.folder.event(JournalEvent::event_refused,
                          {{"host", name}, {"why", finding.error().message}});
    return;
  }
  if (!*finding) return;
  if (const std::uint64_t left_out = host.health.left_out(); left_out > 0) {
    health::Finding dropped{.kind = health::Kind::dropped};
    dropped.count = left_out;
    parts_.folder.event(JournalEvent::health, health_json(name, dropped));
  }
  if (auto gpus = gpus_of(*host.plan)) health_.set_gpus(name, std::move(*gpus));
  const HealthView::Taken taken = health_.take(name, **finding, now - host.health.age());
  nlohmann::ordered_json fields = health_json(name, **finding);
  fields["n"] = host.health.number();
  if (!taken.incident.used) fields["used"] = false;
  parts_.folder.event(JournalEvent::health, fields);
  if (!taken.changed || taken.incident.judgement.action < health::Action::drain) return;
  std::string text = fmt::format("{}: {}", name, taken.incident.text());
  if (!taken.incident.used) text += ", which this job does not use";
  const std::string command = taken.incident.command(name);
  if (!command.empty()) text += "; to repair it: " + command;
  parts_.console.message(text);
}

std::optional<std::pair<std::string, HardwareEvidence>> Attempt::hardware_evidence() const {
  if (!cause_ || is_wanted(cause_->what)) return std::nullopt;
  const double failed_at = static_cast<double>(cause_->at_ms) / 1000;
  // First the host of the first cause, then the others: a rank often ends because of a fault on a
  // peer's host.
  std::vector<std::string> names = {cause_->host};
  for (const Host& host : hosts_) names.push_back(host.plan->name);
  for (const std::string& name : names)
    if (auto evidence = explained_by_hardware(health_, name, started_at_, failed_at))
      return std::pair(name, std::move(*evidence));
  return std::nullopt;
}

}  // namespace sortie::launcher
