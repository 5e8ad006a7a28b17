// What hosts report of their health, checked where it comes in, and as it stands in events.jsonl. A
// host is not trusted: it says facts; class, action, words and commands come from the table here
// (common/health).
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

/// The finding in a JSON object: its members have their type and limits, texts are printable.
/// ErrorCode::data: which is not so. A kind of another version is refused.
Result<health::Finding> finding_of(const nlohmann::json& object);

/// The members of the event `health`: the finding, and what it means.
nlohmann::ordered_json health_json(const std::string& host, const health::Finding& finding);

/// What one host sends during an attempt: each finding once, and no more than a person could want.
class HealthIntake {
 public:
  static constexpr std::size_t kMostAMinute = 120;
  static constexpr std::size_t kMaxBytes = 64u << 10;

  /// Of a wire::HealthEvent. Nothing: it was taken before, or comes on top of too many. `now` in
  /// seconds. ErrorCode::data: it is none.
  Result<std::optional<health::Finding>> take(std::string_view json, double now);
  /// Of the finding that was taken last; the runner counts them, from 1. 0: it had none.
  std::uint64_t number() const { return number_; }
  /// How many came on top since this was asked last.
  std::uint64_t left_out();

 private:
  std::uint64_t number_ = 0;
  std::deque<double> times_;  // of those within the last minute
  std::uint64_t left_out_ = 0;
};

/// NVML's numbers of the GPUs that the ranks on this host may use, as CUDA_VISIBLE_DEVICES says.
/// Nothing: all of them.
std::optional<std::set<int>> gpus_of(const HostPlan& host);

}  // namespace sortie::launcher
