// Host lines and host expressions: "gpu-01 slots=4", "h slots=0,2,5", "gpu[01-08,11] slots=8",
// "@gpu,!gpu07"; "gpu[01-08] slots=8 site=oslo" where several datacenters train together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"

namespace sortie::config {

class HostGroups;  // hostgroups.h; nullptr = no groups

/// A host and its slots, in rank order. Slot values are device ids ("slots=0,2,5") or 0..n-1.
struct HostSlots {
  std::string name;  // strict grammar [A-Za-z0-9_][A-Za-z0-9._-]{0,252} or a bracketed IPv6 literal
  std::vector<int> slots;
  std::string site{};  // "site=NAME": the datacenter that it is in; empty = all hosts are in one
  bool operator==(const HostSlots&) const = default;
};

inline constexpr std::size_t kMaxHosts = 65536;    // an expansion beyond this is an error
inline constexpr int kMaxSlots = 4096;             // per host; device ids are below it
inline constexpr std::size_t kMaxRanks = 1 << 20;  // slots of all hosts together

/// What is wrong with the name of a site ("why; what to do"), empty for [A-Za-z0-9_][A-Za-z0-9_-]*
/// of at most 63 characters: it is a part of file names and of messages.
std::string check_site_name(std::string_view name);

/// Names of the sites of these hosts, in the order in which they first appear; empty where no host
/// has one.
std::vector<std::string> sites_of(const std::vector<HostSlots>& hosts);

/// Parses one line, "EXPRESSION [slots=N | slots=A,B,...] [site=NAME]", its options in any order.
/// `default_slots` is used when the line has no "slots=".
Result<std::vector<HostSlots>> parse_host_line(std::string_view line, int default_slots,
                                               const HostGroups* groups = nullptr);

/// Parses host lines ('#' comments, blank lines allowed); a host twice is an error naming both
/// lines, and so is a host without a site beside one with it. `where` prefixes errors as
/// "<where>:<line>: ".
Result<std::vector<HostSlots>> parse_host_file(std::string_view text, std::string_view where,
                                               int default_slots,
                                               const HostGroups* groups = nullptr);

/// Expands a comma-separated expression of names and ranges ("h[01-04],x"), groups ("@gpu") and
/// exclusions from what stands before them ("!h03", "!@broken") to names, order kept. A name may
/// hold several ranges (the last one runs fastest). Errors: a host twice (groups may overlap), an
/// exclusion that excludes nothing (but for groups), no host left.
Result<std::vector<std::string>> expand_host_expression(std::string_view expression,
                                                        const HostGroups* groups = nullptr);

/// `names` without the hosts of the expression; the same errors.
Result<std::vector<std::string>> exclude_hosts(const std::vector<std::string>& names,
                                               std::string_view expression,
                                               const HostGroups* groups = nullptr);

/// The groups that an expression names, without '@'; nothing when it is malformed.
std::vector<std::string> mentioned_groups(std::string_view expression);

/// Checks runner.hosts as far as that is possible without reading a groups file, and gives their
/// sites.
Result<std::vector<std::string>> check_host_lines(const RunnerConfig& runner);

/// The hosts of a job in rank order: runner.hosts, or the lines of runner.hosts_file (read here),
/// or with neither localhost; groups are those of runner.groups_file, read when one is mentioned.
/// Both, a host twice, hosts with and without a site, or no host at all is ErrorCode::config.
Result<std::vector<HostSlots>> job_hosts(const RunnerConfig& runner);

/// The hosts as lines that job_hosts() reads back.
std::vector<std::string> host_lines(const std::vector<HostSlots>& hosts);

/// Folds names to a short range expression: {"gpu01","gpu02","gpu12"} -> "gpu[01-02,12]". The
/// inverse of expand_host_expression up to order: names come out sorted, each once.
std::string fold_host_names(std::vector<std::string> names);

}  // namespace sortie::config
