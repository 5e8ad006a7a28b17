#include "common/config/hostlist.h"

#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "common/base/atomic_file.h"
#include "common/config/text.h"

namespace sortie::config {
namespace {

constexpr std::size_t kMaxNameBytes = 253;
constexpr std::size_t kMaxHostFileBytes = 16u << 20;
constexpr std::size_t kMaxRangeDigits = 18;

using Names = std::vector<std::string>;

std::unexpected<Error> bad(std::string message) {
  return fail(ErrorCode::config, std::move(message));
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_name_char(char c) {
  return is_name_start(c) || c == '.' || c == '-';
}

/// "[fe80::1%eth0]": an IPv6 literal rather than a range.
bool is_ipv6_literal(std::string_view text) {
  if (!text.starts_with('[') || !text.ends_with(']')) return false;
  const std::string_view inner = text.substr(1, text.size() - 2);
  const std::size_t percent = inner.find('%');
  const std::string_view zone = percent == inner.npos ? "x" : inner.substr(percent + 1);
  const std::string address(inner.substr(0, percent));
  in6_addr parsed;
  // inet_pton stops at a NUL and would overlook what follows it.
  return !zone.empty() && zone.size() <= 16 && std::ranges::all_of(zone, is_name_char) &&
         !address.contains('\0') && inet_pton(AF_INET6, address.c_str(), &parsed) == 1;
}

Result<> check_name(std::string_view name) {
  if (is_ipv6_literal(name)) return {};
  if (name.empty()) return bad("a host name is empty; write a name between the commas");
  if (name.contains('@'))
    return bad(
        fmt::format("{}: a host is a name alone; set the user in runner.ssh.user or "
                    "~/.ssh/config",
                    quote(shorten(name))));
  if (name.contains(':'))
    return bad(
        fmt::format("{}: a host is a name alone; set the port in runner.ssh.port or "
                    "~/.ssh/config, and write an IPv6 address as \"[::1]\"",
                    quote(shorten(name))));
  if (!is_name_start(name.front()) || !std::ranges::all_of(name, is_name_char))
    return bad(
        fmt::format("{} is no host name; use letters, digits, '.', '_' and '-', no '.' or "
                    "'-' first",
                    quote(shorten(name))));
  if (name.size() > kMaxNameBytes)
    return bad(fmt::format("{} is no host name: {} characters; use at most {}",
                           quote(shorten(name)), name.size(), kMaxNameBytes));
  return {};
}

Result<std::uint64_t> parse_number(std::string_view text, std::string_view range) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text.size() > kMaxRangeDigits || error != std::errc() ||
      end != text.data() + text.size())
    return bad(
        fmt::format("[{}] is no range; write numbers like [1-8] or [01-08,11]", shorten(range)));
  return value;
}

bool is_padded(std::string_view number) {
  return number.size() > 1 && number.front() == '0';
}

/// The numbers of "01-08,11" as text.
Result<Names> expand_range(std::string_view range) {
  Names numbers;
  std::string_view rest = range;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    more = comma != rest.npos;
    if (more) rest.remove_prefix(comma + 1);
    const std::size_t dash = part.find('-');
    const std::string_view low = part.substr(0, dash);
    const std::string_view high = dash == part.npos ? low : part.substr(dash + 1);
    SORTIE_ASSIGN_OR_RETURN(const std::uint64_t first, parse_number(low, range));
    SORTIE_ASSIGN_OR_RETURN(const std::uint64_t last, parse_number(high, range));
    if (last < first)
      return bad(fmt::format("[{}] counts down; write [{}-{}]", shorten(range), high, low));
    if ((is_padded(low) || is_padded(high)) && low.size() != high.size())
      return bad(fmt::format("[{}] mixes {} and {} digits; pad both ends alike", shorten(range),
                             low.size(), high.size()));
    if (last - first >= kMaxHosts - numbers.size())
      return bad(
          fmt::format("[{}] is more than {} hosts; split the job", shorten(range), kMaxHosts));
    for (std::uint64_t value = first; value <= last; ++value)
      numbers.push_back(is_padded(low) ? fmt::format("{:0{}}", value, low.size())
                                       : fmt::format("{}", value));
  }
  return numbers;
}

/// Expands one name with any number of ranges, appending to `names`.
Result<> expand_name(std::string_view text, Names& names) {
  Names prefixes = {""};
  std::size_t longest = 0;
  std::string_view rest = is_ipv6_literal(text) ? std::string_view() : text;
  if (rest.empty()) prefixes.front() = text;
  while (!rest.empty()) {
    const std::size_t open = std::min(rest.find('['), rest.size());
    const std::size_t close = rest.find(']', open);
    if (rest.substr(0, open).contains(']') || (open < rest.size() && close == rest.npos))
      return bad(fmt::format("{}: brackets do not match; write ranges like gpu[01-08]",
                             quote(shorten(text))));
    for (std::string& prefix : prefixes) prefix += rest.substr(0, open);
    longest += open;
    if (open == rest.size()) break;
    SORTIE_ASSIGN_OR_RETURN(const Names numbers,
                            expand_range(rest.substr(open + 1, close - open - 1)));
    longest += numbers.back().size();
    if (prefixes.size() * numbers.size() > kMaxHosts || longest > kMaxNameBytes)
      return bad(fmt::format("{} is more than {} hosts or {} characters; split the job",
                             quote(shorten(text)), kMaxHosts, kMaxNameBytes));
    Names longer;
    longer.reserve(prefixes.size() * numbers.size());
    for (const std::string& prefix : prefixes)
      for (const std::string& number : numbers) longer.push_back(prefix + number);
    prefixes = std::move(longer);
    rest.remove_prefix(close + 1);
  }
  for (std::string& name : prefixes) {
    SORTIE_TRY(check_name(name));
    names.push_back(std::move(name));
  }
  if (names.size() > kMaxHosts)
    return bad(fmt::format("more than {} hosts; split the job", kMaxHosts));
  return {};
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

/// "4" -> 0..3, "0,2,5" and "3," -> those device ids.
Result<std::vector<int>> parse_slots(std::string_view text) {
  std::vector<int> slots;
  const auto number = [&](std::string_view digits, int min, int max) -> Result<int> {
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < min || value > max)
      return bad(
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
      return bad(fmt::format("slots={}: slot {} twice; remove one", shorten(text), slot));
    seen[static_cast<std::size_t>(slot)] = true;
    slots.push_back(slot);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return slots;
}

/// Collects hosts and refuses the second line that names one of them.
class HostCollector {
 public:
  /// `place` is how messages call the line ("line 3", "runner.hosts[0]").
  Result<> add(std::vector<HostSlots> hosts, const std::string& place) {
    for (HostSlots& host : hosts) {
      const auto [entry, is_new] = places_.emplace(host.name, place);
      if (!is_new)
        return bad(fmt::format("host {} is already in {}; remove one of the two", host.name,
                               entry->second));
      num_ranks_ += host.slots.size();
      all_.push_back(std::move(host));
    }
    if (all_.size() > kMaxHosts)
      return bad(fmt::format("more than {} hosts; split the job", kMaxHosts));
    if (num_ranks_ > kMaxRanks)
      return bad(fmt::format("more than {} ranks; split the job", kMaxRanks));
    return {};
  }
  std::vector<HostSlots> take() { return std::move(all_); }

 private:
  std::vector<HostSlots> all_;
  std::size_t num_ranks_ = 0;
  std::unordered_map<std::string, std::string> places_;
};

}  // namespace

Result<std::vector<std::string>> expand_host_expression(std::string_view expression) {
  Names names;
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t i = 0; i <= expression.size(); ++i) {
    if (i < expression.size() && (inside || expression[i] != ',')) {
      if (expression[i] == '[') inside = true;
      if (expression[i] == ']') inside = false;
      continue;
    }
    const std::string_view name = trim(expression.substr(begin, i - begin));
    if (name.empty()) return bad("a host name is empty; write a name between the commas");
    SORTIE_TRY(expand_name(name, names));
    begin = i + 1;
  }
  std::unordered_map<std::string_view, bool> seen;
  for (const std::string& name : names)
    if (!seen.emplace(name, true).second)
      return bad(
          fmt::format("host {} is twice in {}; remove one", name, quote(shorten(expression))));
  return names;
}

Result<std::vector<HostSlots>> parse_host_line(std::string_view line, int default_slots) {
  const std::string_view text = trim(line);
  const std::size_t blank = std::min(text.find_first_of(" \t"), text.size());
  const std::string_view option = trim(text.substr(blank));
  if (text.empty()) return bad("a host line is empty; write NAME or NAME slots=N");
  SORTIE_ASSIGN_OR_RETURN(const Names names, expand_host_expression(text.substr(0, blank)));
  std::vector<int> slots;
  if (option.empty()) {
    for (int slot = 0; slot < default_slots; ++slot) slots.push_back(slot);
  } else if (option.starts_with("slots=")) {
    SORTIE_ASSIGN_OR_RETURN(slots, parse_slots(option.substr(6)));
  } else {
    return bad(
        fmt::format("{} after the host name is not understood; a line is NAME, NAME slots=N "
                    "or NAME slots=A,B,...",
                    quote(shorten(option))));
  }
  if (names.size() * slots.size() > kMaxRanks)
    return bad(fmt::format("{} hosts with {} slots are more than {} ranks; split the job",
                           names.size(), slots.size(), kMaxRanks));
  std::vector<HostSlots> hosts;
  hosts.reserve(names.size());
  for (const std::string& name : names) hosts.push_back({name, slots});
  return hosts;
}

Result<std::vector<HostSlots>> parse_host_file(std::string_view text, std::string_view where,
                                               int default_slots) {
  HostCollector collector;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = trim(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::string place = fmt::format("{}:{}", where, number);
    auto hosts = parse_host_line(line, default_slots);
    Result<> added = hosts ? collector.add(std::move(*hosts), fmt::format("line {}", number))
                           : std::unexpected(hosts.error());
    if (!added) return std::unexpected(with_context(std::move(added).error(), place));
  }
  return collector.take();
}

Result<std::vector<HostSlots>> job_hosts(const RunnerConfig& runner) {
  const int default_slots = static_cast<int>(runner.default_slots);
  if (!runner.hosts.empty() && !runner.hosts_file.empty())
    return bad("runner.hosts and runner.hosts_file: both are set; remove one of the two");
  if (!runner.hosts_file.empty()) {
    auto text = read_file(runner.hosts_file, kMaxHostFileBytes);
    if (!text) return std::unexpected(with_context(text.error(), "runner.hosts_file"));
    SORTIE_ASSIGN_OR_RETURN(auto hosts, parse_host_file(*text, runner.hosts_file, default_slots));
    if (hosts.empty())
      return bad(fmt::format("{}: no host in the file; write one NAME [slots=N] per line",
                             runner.hosts_file));
    return hosts;
  }
  if (runner.hosts.empty()) return parse_host_line("localhost", default_slots);
  HostCollector collector;
  for (std::size_t i = 0; i < runner.hosts.size(); ++i) {
    const std::string place = fmt::format("runner.hosts[{}]", i);
    auto hosts = parse_host_line(runner.hosts[i], default_slots);
    Result<> added =
        hosts ? collector.add(std::move(*hosts), place) : std::unexpected(hosts.error());
    if (!added) return std::unexpected(with_context(std::move(added).error(), place));
  }
  return collector.take();
}

}  // namespace sortie::config
