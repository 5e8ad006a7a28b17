// `sortie check --comm`: what `sortie-train bench comm --links` has measured between the hosts of a
// job, read and judged. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher::check {

struct CommLink {
  std::string from, to;   // hosts, printable
  double gbit_s = 0;      // each way at the same time; in a ring from `from` to `to`
  double latency_us = 0;  // of 8 bytes one way; 0 in a ring
};

/// Of several ranks per host a link is the mean of those between their ranks.
struct CommReport {
  std::string library;
  std::size_t ranks = 0;
  std::vector<std::string> hosts;     // in rank order, each once
  std::vector<CommLink> pairs, ring;  // between different hosts, each once
};

/// The JSON of `bench comm --links --json`. ErrorCode::protocol where it is not that. The ranks are
/// trusted as far as their hosts are: names are made printable, numbers are checked.
Result<CommReport> parse_comm_report(std::string_view text);

/// "1Gbit/s", "200 Mbit/s", "2.5e3kbit": in Gbit/s. ErrorCode::usage.
Result<double> parse_bit_rate(std::string_view text);

/// Below this share of what is usual a link is slow, where no floor is set.
inline constexpr double kUsualShare = 0.7;

struct CommFinding {
  std::vector<std::string> hosts;  // all of whose links are slow; or the ends of one link
  std::string text, fix;
};
struct CommJudgement {
  double usual_gbit_s = 0;        // median over hosts of each one's fastest link
  double floor_gbit_s = 0;        // 0: there is nothing to compare with
  bool floor_was_set = false;     // by the user
  std::vector<CommFinding> slow;  // most serious first; equal ones once
};

/// A host is named where more than half of its links are slow, and not those of the other ends; a
/// link where it is slow for itself. With two hosts and no floor nothing is judged.
CommJudgement judge_comm(const CommReport& report, std::optional<double> floor_gbit_s);

/// The outcome of the measurement, for people and for programs.
struct CommOutcome {
  std::optional<Error> error;  // not measured: why, and what to do
  CommReport report;
  CommJudgement judgement;
  double seconds = 0;
};
struct CommLook {
  bool color = false, verbose = false;  // verbose: every pair
};
std::string comm_text(const CommOutcome& outcome, const CommLook& look);
/// The member "comm" of the JSON of a check.
nlohmann::ordered_json comm_json(const CommOutcome& outcome);

}  // namespace sortie::launcher::check
