#include "common/config/hostlist.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "common/base/atomic_file.h"
#include "common/base/split.h"
#include "common/config/hostgroups.h"
#include "common/config/text.h"

namespace sortie::config {
namespace {

constexpr std::size_t kMaxHostFileBytes = 16u << 20;

using Names = std::vector<std::string>;

std::unexpected<Error> bad_host(std::string message) {
  return fail(ErrorCode::config, std::move(message));
}

/// "4" gives 0..3; "0,2,5" and "3," give those device ids.
Result<std::vector<int>> parse_slots(std::string_view text) {
  std::vector<int> slots;
  const auto number = [&](std::string_view digits, int min, int max) -> Result<int> {
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < min || value > max)
      return bad_host(
          fmt::format("slots={}: {} is no number from {} to {}; write slots=4 for four "
                      "slots or slots=0,2,5 for device ids",
                      shorten(text), quote(shorten(digits)), min, max));
    return value;
  };
  if (!text.contains(',')) {
    SORTIE_ASSIGN_OR_RETURN(const int count, number(text, 1, kMaxSlots));
    for (int slot = 0; slot < count; ++slot) slots.push_back(slot);
    return slots;
  }
  std::vector<bool> seen(kMaxSlots);
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    SORTIE_ASSIGN_OR_RETURN(const int slot, number(rest.substr(0, comma), 0, kMaxSlots - 1));
    if (seen[static_cast<std::size_t>(slot)])
      return bad_host(fmt::format("slots={}: slot {} twice; remove one", shorten(text), slot));
    seen[static_cast<std::size_t>(slot)] = true;
    slots.push_back(slot);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return slots;
}

constexpr std::string_view kBlanks = " \t";

/// Options after the name in a host line; empty if they are not given.
struct LineOptions {
  std::vector<int> slots;
  std::string site;
};

Result<LineOptions> parse_line_options(std::string_view text) {
  LineOptions options;
  for (text = trim(text); !text.empty();) {
    const std::size_t end = std::min(text.find_first_of(kBlanks), text.size());
    const std::string_view option = text.substr(0, end);
    text = trim(text.substr(end));
    const bool is_site = option.starts_with("site=");
    if (!is_site && !option.starts_with("slots="))
      return bad_host(
          fmt::format("{} after the host name is not understood; a line is NAME, NAME slots=N "
                      "or NAME slots=A,B,..., each with site=NAME where sites train together",
                      quote(shorten(option))));
    if (is_site ? !options.site.empty() : !options.slots.empty())
      return bad_host(
          fmt::format("{} twice in one host line; remove one", is_site ? "site=" : "slots="));
    if (is_site) {
      options.site = option.substr(5);
      if (std::string error = check_site_name(options.site); !error.empty())
        return bad_host(std::move(error));
    } else {
      SORTIE_ASSIGN_OR_RETURN(options.slots, parse_slots(option.substr(6)));
    }
  }
  return options;
}

/// Collects hosts. Refuses a host that an earlier line has named, and a mix of hosts with and
/// without a site.
class HostCollector {
 public:
  /// `place` names the line in messages ("line 3", "runner.hosts[0]").
  Result<> add(std::vector<HostSlots> hosts, const std::string& place) {
    for (HostSlots& host : hosts) {
      const auto [entry, is_new] = places_.emplace(host.name, place);
      if (!is_new)
        return bad_host(fmt::format("host {} is already in {}; remove one of the two", host.name,
                                    entry->second));
      if (!all_.empty() && host.site.empty() != all_.front().site.empty())
        return bad_host(host.site.empty()
                            ? fmt::format("host {} has no site, and {} is in site {}; write "
                                          "site=NAME for every host, or for none",
                                          host.name, all_.front().name, all_.front().site)
                            : fmt::format("host {} is in site {}, and {} has none; write "
                                          "site=NAME for every host, or for none",
                                          host.name, host.site, all_.front().name));
      num_ranks_ += host.slots.size();
      all_.push_back(std::move(host));
    }
    if (all_.size() > kMaxHosts)
      return bad_host(fmt::format("more than {} hosts; split the job", kMaxHosts));
    if (num_ranks_ > kMaxRanks)
      return bad_host(fmt::format("more than {} ranks; split the job", kMaxRanks));
    return {};
  }
  std::vector<HostSlots> take() { return std::move(all_); }

 private:
  std::vector<HostSlots> all_;
  std::size_t num_ranks_ = 0;
  std::unordered_map<std::string, std::string> places_;
};

}  // namespace

std::string check_site_name(std::string_view name) {
  constexpr std::size_t kMaxSiteName = 63;
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (!name.empty() && name.size() <= kMaxSiteName && is_plain(name.front()) &&
      std::ranges::all_of(name, [&](char c) { return is_plain(c) || c == '-'; }))
    return {};
  return fmt::format(
      "{} is no name of a site; use at most {} letters, digits, '_' and '-', no '-' first",
      quote(shorten(name)), kMaxSiteName);
}

std::vector<std::string> sites_of(const std::vector<HostSlots>& hosts) {
  std::vector<std::string> sites;
  for (const HostSlots& host : hosts)
    if (!host.site.empty() && std::ranges::find(sites, host.site) == sites.end())
      sites.push_back(host.site);
  return sites;
}

Result<std::vector<HostSlots>> parse_host_line(std::string_view line, int default_slots,
                                               const HostGroups* groups) {
  const std::string_view text = trim(line);
  const std::size_t blank = std::min(text.find_first_of(kBlanks), text.size());
  if (text.empty()) return bad_host("a host line is empty; write NAME or NAME slots=N");
  SORTIE_ASSIGN_OR_RETURN(const Names names, expand_host_expression(text.substr(0, blank), groups));
  SORTIE_ASSIGN_OR_RETURN(LineOptions options, parse_line_options(text.substr(blank)));
  if (options.slots.empty())
    for (int slot = 0; slot < default_slots; ++slot) options.slots.push_back(slot);
  if (names.size() * options.slots.size() > kMaxRanks)
    return bad_host(fmt::format("{} hosts with {} slots are more than {} ranks; split the job",
                                names.size(), options.slots.size(), kMaxRanks));
  std::vector<HostSlots> hosts;
  hosts.reserve(names.size());
  for (const std::string& name : names) hosts.push_back({name, options.slots, options.site});
  return hosts;
}

Result<std::vector<HostSlots>> parse_host_file(std::string_view text, std::string_view where,
                                               int default_slots, const HostGroups* groups) {
  HostCollector collector;
  for (int number = 1; !text.empty(); ++number) {
    std::string_view line = take_line(text);
    line = trim(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::string place = fmt::format("{}:{}", where, number);
    auto hosts = parse_host_line(line, default_slots, groups);
    Result<> added = hosts ? collector.add(std::move(*hosts), fmt::format("line {}", number))
                           : std::unexpected(hosts.error());
    if (!added) return std::unexpected(with_context(std::move(added).error(), place));
  }
  return collector.take();
}

namespace {

Result<std::vector<HostSlots>> collect(const RunnerConfig& runner, const HostGroups& groups) {
  HostCollector collector;
  for (std::size_t i = 0; i < runner.hosts.size(); ++i) {
    const std::string place = fmt::format("runner.hosts[{}]", i);
    auto hosts = parse_host_line(runner.hosts[i], static_cast<int>(runner.default_slots), &groups);
    Result<> added =
        hosts ? collector.add(std::move(*hosts), place) : std::unexpected(hosts.error());
    if (!added) return std::unexpected(with_context(std::move(added).error(), place));
  }
  return collector.take();
}

}  // namespace

Result<std::vector<std::string>> check_host_lines(const RunnerConfig& runner) {
  const HostGroups any = HostGroups::any();
  SORTIE_ASSIGN_OR_RETURN(const auto hosts, collect(runner, any));
  return sites_of(hosts);
}

Result<std::vector<HostSlots>> job_hosts(const RunnerConfig& runner) {
  const int default_slots = static_cast<int>(runner.default_slots);
  if (!runner.hosts.empty() && !runner.hosts_file.empty())
    return bad_host("runner.hosts and runner.hosts_file: both are set; remove one of the two");
  HostGroups groups;
  const auto load_for = [&](std::string_view text) -> Result<> {
    if (!text.contains('@')) return {};
    SORTIE_ASSIGN_OR_RETURN(groups, HostGroups::load(runner.groups_file));
    return {};
  };
  if (!runner.hosts_file.empty()) {
    auto text = read_file(runner.hosts_file, kMaxHostFileBytes);
    if (!text) return std::unexpected(with_context(text.error(), "runner.hosts_file"));
    SORTIE_TRY(load_for(*text));
    SORTIE_ASSIGN_OR_RETURN(auto hosts,
                            parse_host_file(*text, runner.hosts_file, default_slots, &groups));
    if (hosts.empty())
      return bad_host(fmt::format("{}: no host in the file; write one NAME [slots=N] per line",
                                  runner.hosts_file));
    return hosts;
  }
  if (runner.hosts.empty()) return parse_host_line("localhost", default_slots);
  for (const std::string& line : runner.hosts) SORTIE_TRY(load_for(line));
  return collect(runner, groups);
}

std::vector<std::string> host_lines(const std::vector<HostSlots>& hosts) {
  std::vector<std::string> lines;
  for (const HostSlots& host : hosts) {
    std::string& line = lines.emplace_back(host.name + " slots=");
    for (const int slot : host.slots) line += fmt::format("{},", slot);
    if (host.slots.size() > 1) line.pop_back();  // a single id keeps its comma: "3," is device 3
    if (!host.site.empty()) line += " site=" + host.site;
  }
  return lines;
}

}  // namespace sortie::config
