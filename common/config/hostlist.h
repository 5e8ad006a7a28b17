// Host lines and host expressions: "gpu-01 slots=4", "h slots=0,2,5", "gpu[01-08,11] slots=8".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"

namespace sortie::config {

/// A host and its slots, in rank order. Slot values are device ids ("slots=0,2,5") or 0..n-1.
struct HostSlots {
  std::string name;  // strict grammar [A-Za-z0-9_][A-Za-z0-9._-]{0,252} or a bracketed IPv6 literal
  std::vector<int> slots;
  bool operator==(const HostSlots&) const = default;
};

inline constexpr std::size_t kMaxHosts = 65536;    // an expansion beyond this is an error
inline constexpr int kMaxSlots = 4096;             // per host; device ids are below it
inline constexpr std::size_t kMaxRanks = 1 << 20;  // slots of all hosts together

/// Parses one line, "EXPRESSION [slots=N | slots=A,B,...]". `default_slots` is used when the line
/// has no "slots=".
Result<std::vector<HostSlots>> parse_host_line(std::string_view line, int default_slots);

/// Parses host lines ('#' comments, blank lines allowed); a host twice is an error naming both
/// lines. `where` prefixes errors as "<where>:<line>: ".
Result<std::vector<HostSlots>> parse_host_file(std::string_view text, std::string_view where,
                                               int default_slots);

/// Expands a comma-separated expression of names and ranges ("h[01-04],x") to names, order kept. A
/// name may hold several ranges (the last one runs fastest); a host twice is an error.
Result<std::vector<std::string>> expand_host_expression(std::string_view expression);

/// The hosts of a job in rank order: runner.hosts, or the lines of runner.hosts_file (read here),
/// or with neither localhost. Both, a host twice, or no host at all is ErrorCode::config.
Result<std::vector<HostSlots>> job_hosts(const RunnerConfig& runner);

/// Folds names to a short range expression: {"gpu01","gpu02","gpu12"} -> "gpu[01-02,12]". The
/// inverse of expand_host_expression up to order: names come out sorted, each once.
std::string fold_host_names(std::vector<std::string> names);

}  // namespace sortie::config
