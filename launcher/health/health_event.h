// Health findings reported by hosts: validation, and their form in events.jsonl. A host is not
// trusted: it reports facts; class, action, texts and commands come from the table in
// common/health.
#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "common/health/finding.h"
#include "launcher/plan/plan.h"

namespace sortie::launcher {

/// Parses a finding: its members have the right types and limits, texts are made printable.
/// ErrorCode::data names an invalid member. A kind of another version is rejected.
Result<health::Finding> finding_of(const nlohmann::json& object);

/// Returns the members of the event `health`: the finding and its judgement.
nlohmann::ordered_json health_json(const std::string& host, const health::Finding& finding);

/// Filters the findings of one host during an attempt: each finding once, and at most kMostAMinute
/// per minute.
class HealthIntake {
 public:
  static constexpr std::size_t kMostAMinute = 120;
  static constexpr std::size_t kMaxBytes = 64u << 10;

  /// Takes the JSON of a wire::HealthEvent. Returns nullopt if it was taken before or exceeds the
  /// rate limit. `now`: seconds. ErrorCode::data if it is invalid.
  Result<std::optional<health::Finding>> take(std::string_view json, double now);
  /// Highest number of a finding so far; the runner numbers findings from 1. 0: none had a number.
  std::uint64_t number() const { return number_; }
  /// Age in seconds of the finding taken last: 0, unless the runner has sent it again.
  double age() const { return age_; }
  /// Number of findings above the rate limit since the last call.
  std::uint64_t left_out();

 private:
  std::uint64_t number_ = 0;
  double age_ = 0;
  std::deque<double> times_;  // times of findings within the last minute
  std::uint64_t left_out_ = 0;
};

/// NVML indices of the GPUs that the ranks on this host may use, from CUDA_VISIBLE_DEVICES.
/// nullopt: all of them.
std::optional<std::set<int>> gpus_of(const HostPlan& host);

}  // namespace sortie::launcher
