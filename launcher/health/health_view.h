// The health of all hosts of a run: incidents, made of the findings that hosts report, and the
// answer to what a failure needs: is it explained by the hardware of this host? Pure: times are
// given.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/health/judge.h"

namespace sortie::launcher {

/// Findings about one device within health::kGroupSeconds: the one of the highest class is the
/// cause of the others.
struct HealthIncident {
  health::Finding finding;      // the cause
  health::Judgement judgement;  // of it
  double first_at = 0, last_at = 0;
  std::uint64_t findings = 1;
  bool used = true;  // whether the job may use the device

  /// "GPU 3 (0000:3b:00.0): XID 79: the GPU has fallen off the bus".
  std::string text() const;
  /// What a person may run; empty where there is nothing.
  std::string command(const std::string& host) const;
};

/// Why a failure is one of the hardware.
struct HardwareEvidence {
  health::Class kind = health::Class::hardware;
  /// The host is of no use until a person has acted: the next attempt must not have it.
  bool unusable = false;
  std::string reason;   // HealthIncident::text()
  std::string command;  // for a person; empty where there is none
  double at = 0;
};

class HealthView {
 public:
  /// What is kept of one host: the latest.
  static constexpr std::size_t kMostIncidents = 64;

  /// Which GPUs the job may use there; not said = all. Incidents of the others are kept, but
  /// explain nothing.
  void set_gpus(const std::string& host, std::set<int> gpus);

  struct Taken {
    const HealthIncident& incident;
    bool fresh;    // it is a new one
    bool changed;  // its cause is another one than before
  };
  /// `at`: when it was heard of, in seconds on any one clock. `used`: HealthIncident::used, where
  /// that is known from elsewhere.
  Taken take(const std::string& host, const health::Finding& finding, double at,
             std::optional<bool> used = std::nullopt);

  /// The worst incident of a host within the last `seconds`; of equals the first.
  std::optional<HealthIncident> worst(const std::string& host, double now, double seconds) const;
  /// Those of one host in the order of their times.
  std::vector<HealthIncident> incidents(const std::string& host) const;
  std::vector<std::string> hosts() const;  // that have any
  /// "kernel log; NVML 550.54: 8 GPUs; ...": what is watched there. Empty: nothing was heard.
  std::string sources(const std::string& host) const;
  /// All of it, by host.
  const std::map<std::string, std::string>& sources() const { return sources_; }

 private:
  bool uses(const std::string& host, const health::Finding& finding) const;
  std::map<std::string, std::deque<HealthIncident>> incidents_;
  std::map<std::string, std::set<int>> gpus_;
  std::map<std::string, std::string> sources_;
};

/// How long before a failure an incident may lie that a new start mends, and how long after it the
/// news of it may come.
inline constexpr double kEvidenceBefore = 120, kEvidenceAfter = 15;

/// Whether the failure at `failed_at` of a job on `host` is explained by hardware, by what was
/// heard of that host since `attempt_begun`: an incident that makes the host useless at any time
/// since then, another one shortly before the failure. The worst; of equals the first. All in
/// seconds on the clock of HealthView::take().
std::optional<HardwareEvidence> explained_by_hardware(const HealthView& view,
                                                      const std::string& host, double attempt_begun,
                                                      double failed_at);

}  // namespace sortie::launcher
