// `sortie check --comm`: parses and judges the links between the hosts of a job, as measured by
// `sortie-train bench comm --links`. Pure.
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
  std::string from, to;   // host names, printable
  double gbit_s = 0;      // pairs: each direction, both at the same time; ring: from `from` to `to`
  double latency_us = 0;  // one-way latency of 8 bytes; 0 in a ring
};

/// With several ranks per host, the values of a link are the mean over its pairs of ranks.
struct CommReport {
  std::string library;
  std::size_t ranks = 0;
  std::vector<std::string> hosts;     // in rank order, each once
  std::vector<CommLink> pairs, ring;  // between different hosts, each once
};

/// Parses the JSON of `bench comm --links --json`. ErrorCode::protocol if it is malformed. The
/// hosts are not trusted: names are made printable, numbers are validated.
Result<CommReport> parse_comm_report(std::string_view text);

/// Parses "1Gbit/s", "200 Mbit/s" or "2.5e3kbit"; returns Gbit/s. ErrorCode::usage if it is no
/// rate.
Result<double> parse_bit_rate(std::string_view text);

/// Without a given floor, a link below this share of the usual rate is slow.
inline constexpr double kUsualShare = 0.7;

struct CommFinding {
  std::vector<std::string> hosts;  // hosts whose links are slow, or the ends of slow links
  std::string text, fix;
};
struct CommJudgement {
  double usual_gbit_s = 0;        // median over hosts of the fastest link of each
  double floor_gbit_s = 0;        // 0: nothing was judged
  bool floor_was_set = false;     // given by the user
  std::vector<CommFinding> slow;  // most serious first; each once
};

/// Finds slow links. A host is named if more than half of its links, not counting links to hosts
/// already named, are slow; other slow links are named by their ends. Nothing is judged for two
/// hosts without a floor.
CommJudgement judge_comm(const CommReport& report, std::optional<double> floor_gbit_s);

/// The outcome of the measurement.
struct CommOutcome {
  std::optional<Error> error;  // set if nothing was measured: reason and remedy
  CommReport report;
  CommJudgement judgement;
  double seconds = 0;
};
struct CommLook {
  bool color = false, verbose = false;  // verbose: show every pair
};
std::string comm_text(const CommOutcome& outcome, const CommLook& look);
/// Returns the member "comm" of the JSON of a check.
nlohmann::ordered_json comm_json(const CommOutcome& outcome);

}  // namespace sortie::launcher::check
