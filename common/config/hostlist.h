// Host lines and host expressions: "gpu-01 slots=4", "h slots=0,2,5", "gpu[01-08,11] slots=8",
// "@gpu,!gpu07"; "gpu[01-08] slots=8 site=oslo" if several datacenters train together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/schema.h"

namespace sortie::config {

class HostGroups;  // see hostgroups.h; a null pointer means no groups

/// A host and its slots, in rank order. Slot values are device ids ("slots=0,2,5") or 0..n-1.
struct HostSlots {
  std::string name;  // strict grammar [A-Za-z0-9_][A-Za-z0-9._-]{0,252} or a bracketed IPv6 literal
  std::vector<int> slots;
  std::string site{};  // datacenter of the host ("site=NAME"); empty = all hosts are in one
  bool operator==(const HostSlots&) const = default;
};

inline constexpr std::size_t kMaxHosts = 65536;    // a larger expansion is an error
inline constexpr int kMaxSlots = 4096;             // per host; device ids are less than this
inline constexpr std::size_t kMaxRanks = 1 << 20;  // slots of all hosts together

/// Returns what is wrong with the name of a site ("why; what to do"); empty for
/// [A-Za-z0-9_][A-Za-z0-9_-]* of at most 63 characters. The name is used in file names and
/// messages.
std::string check_site_name(std::string_view name);

/// Names of the sites of these hosts, in order of first appearance; empty if no host has a site.
std::vector<std::string> sites_of(const std::vector<HostSlots>& hosts);

/// Parses one line, "EXPRESSION [slots=N | slots=A,B,...] [site=NAME]", with the options in any
/// order. Without "slots=" each host gets `default_slots`.
Result<std::vector<HostSlots>> parse_host_line(std::string_view line, int default_slots,
                                               const HostGroups* groups = nullptr);

/// Parses host lines; '#' comments and blank lines are allowed. A host in two lines is an error
/// that names both lines. A mix of hosts with and without a site is an error too. `where` prefixes
/// errors as "<where>:<line>: ".
Result<std::vector<HostSlots>> parse_host_file(std::string_view text, std::string_view where,
                                               int default_slots,
                                               const HostGroups* groups = nullptr);

/// Expands a comma-separated expression to names, in order. Its elements are names and ranges
/// ("h[01-04],x"), groups ("@gpu"), and exclusions of hosts from the elements before them ("!h03",
/// "!@broken"). A name may have several ranges; the last one varies fastest. Errors: a host named
/// twice (groups may overlap), an exclusion that removes no host (that of a group may), no host
/// left.
Result<std::vector<std::string>> expand_host_expression(std::string_view expression,
                                                        const HostGroups* groups = nullptr);

/// Removes the hosts of the expression from `names`. Fails like expand_host_expression().
Result<std::vector<std::string>> exclude_hosts(const std::vector<std::string>& names,
                                               std::string_view expression,
                                               const HostGroups* groups = nullptr);

/// Names of the groups in an expression, without '@'; empty if it is malformed.
std::vector<std::string> mentioned_groups(std::string_view expression);

/// Checks runner.hosts without reading a groups file, so hosts of groups stay unknown. Returns the
/// names of the sites.
Result<std::vector<std::string>> check_host_lines(const RunnerConfig& runner);

/// The hosts of a job in rank order: runner.hosts, or the lines of runner.hosts_file, which is read
/// here, or localhost if neither is set. Groups come from runner.groups_file, which is read if one
/// is mentioned. Both keys set, a host twice, hosts with and without a site, or no host at all is
/// ErrorCode::config.
Result<std::vector<HostSlots>> job_hosts(const RunnerConfig& runner);

/// Formats hosts as lines that job_hosts() can read.
std::vector<std::string> host_lines(const std::vector<HostSlots>& hosts);

/// Folds names into a short range expression: {"gpu01","gpu02","gpu12"} -> "gpu[01-02,12]". The
/// inverse of expand_host_expression() except for the order: the result is sorted, without
/// duplicates.
std::string fold_host_names(std::vector<std::string> names);

}  // namespace sortie::config
