// The health of all hosts of a run: groups the findings of hosts into incidents, and decides
// whether a failure is explained by the hardware of a host. Pure: times are parameters.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/health/judge.h"

namespace sortie::launcher {

/// Findings about one device within health::kGroupSeconds. The one of the highest class is the
/// cause of the others.
struct HealthIncident {
  health::Finding finding;      // the cause
  health::Judgement judgement;  // of the cause
  double first_at = 0, last_at = 0;
  std::uint64_t findings = 1;
  bool used = true;  // whether the job may use the device

  /// "GPU 3 (0000:3b:00.0): XID 79: the GPU has fallen off the bus".
  std::string text() const;
  /// Command for the user; empty if there is none.
  std::string command(const std::string& host) const;
};

/// Evidence that a failure was caused by hardware.
struct HardwareEvidence {
  health::Class kind = health::Class::hardware;
  /// The host is unusable until a person has acted: the next attempt must not include it.
  bool unusable = false;
  std::string reason;   // HealthIncident::text()
  std::string command;  // for the user; empty if there is none
  double at = 0;
};

class HealthView {
 public:
  /// Limit per host; the latest are kept.
  static constexpr std::size_t kMostIncidents = 64;

  /// Sets the GPUs that the job may use on a host; default: all. Incidents of other GPUs are kept,
  /// but explain no failure.
  void set_gpus(const std::string& host, std::set<int> gpus);

  struct Taken {
    const HealthIncident& incident;
    bool fresh;    // the incident is new
    bool changed;  // its cause has changed
  };
  /// Adds a finding. `at`: time of receipt, in seconds on any clock that is used for all calls.
  /// `used`: HealthIncident::used if known from elsewhere.
  Taken take(const std::string& host, const health::Finding& finding, double at,
             std::optional<bool> used = std::nullopt);

  /// Returns the worst incident of a host within the last `seconds`; the first among equals.
  std::optional<HealthIncident> worst(const std::string& host, double now, double seconds) const;
  /// Incidents of one host, ordered by time.
  std::vector<HealthIncident> incidents(const std::string& host) const;
  std::vector<std::string> hosts() const;  // with incidents
  /// What is monitored on a host: "kernel log; NVML 550.54: 8 GPUs; ...". Empty if nothing was
  /// reported.
  std::string sources(const std::string& host) const;
  /// The same for all hosts.
  const std::map<std::string, std::string>& sources() const { return sources_; }

 private:
  bool uses(const std::string& host, const health::Finding& finding) const;
  std::map<std::string, std::deque<HealthIncident>> incidents_;
  std::map<std::string, std::set<int>> gpus_;
  std::map<std::string, std::string> sources_;
};

/// Maximum seconds between a failure and an earlier incident that a restart repairs, and between a
/// failure and the later report of an incident.
inline constexpr double kEvidenceBefore = 120, kEvidenceAfter = 15;

/// Returns the evidence that the failure at `failed_at` of a job on `host` was caused by hardware;
/// nullopt if there is none. Considers incidents that make the host unusable since `attempt_begun`,
/// and other incidents shortly before the failure. Returns the worst; the first among equals. All
/// times are in seconds on the clock of HealthView::take().
std::optional<HardwareEvidence> explained_by_hardware(const HealthView& view,
                                                      const std::string& host, double attempt_begun,
                                                      double failed_at);

}  // namespace sortie::launcher
