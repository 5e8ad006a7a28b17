#include "common/config/hostlist.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "common/base/atomic_file.h"

namespace sortie::config {
namespace {

constexpr int kMaxSlot = 65535;

Error host_error(std::string message) {
  return {ErrorCode::config, std::move(message)};
}

bool name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

/// The strict grammar: whatever passes can not be mistaken for an option or carry shell or SSH
/// syntax.
bool valid_name(std::string_view name) {
  if (name.empty() || name.size() > 253) return false;
  if (name.front() == '[' && name.back() == ']') {
    const std::string_view address = name.substr(1, name.size() - 2);
    return std::ranges::count(address, ':') >= 2 && std::ranges::all_of(address, [](char c) {
             return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') ||
                    c == ':' || c == '.';
           });
  }
  return name.front() != '-' && name.front() != '.' && std::ranges::all_of(name, name_character);
}

std::optional<std::int64_t> parse_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty() || value < 0)
    return std::nullopt;
  return value;
}

/// Splits at `separator` outside of brackets.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[') ++depth;
    if (text[i] == ']') --depth;
    if (text[i] == separator && depth <= 0) {
      parts.push_back(text.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

bool ipv6_literal(std::string_view item) {
  return item.front() == '[' && item.back() == ']' && item.find(':') != item.npos;
}

/// "gpu[01-03,7]x" to gpu01x gpu02x gpu03x gpu7x.
Result<> expand_item(std::string_view item, std::vector<std::string>& names) {
  if (item.empty()) return std::unexpected(host_error("empty host name; remove the extra comma"));
  const auto open = item.find('[');
  if (open == item.npos || ipv6_literal(item)) {
    if (!valid_name(item))
      return std::unexpected(host_error(fmt::format(
          "'{}' is no host name; letters, digits, '.', '_' and '-' are allowed, '-' not first",
          item)));
    names.emplace_back(item);
    return {};
  }
  const auto close = item.find(']', open);
  if (close == item.npos || item.find('[', open + 1) != item.npos)
    return std::unexpected(host_error(
        fmt::format("'{}': one range in brackets is expected, like gpu[01-08,11]", item)));
  const std::string_view before = item.substr(0, open), after = item.substr(close + 1);
  for (const std::string_view part : split(item.substr(open + 1, close - open - 1), ',')) {
    const auto dash = part.find('-');
    const std::string_view low_text = part.substr(0, dash);
    const std::string_view high_text = dash == part.npos ? low_text : part.substr(dash + 1);
    const auto low = parse_number(low_text), high = parse_number(high_text);
    if (!low || !high || *low > *high)
      return std::unexpected(host_error(
          fmt::format("'{}': '{}' is no range; write it like 01-08, low end first", item, part)));
    if (names.size() + static_cast<std::size_t>(*high - *low) + 1 > kMaxHosts)
      return std::unexpected(host_error(fmt::format("'{}': more than {} hosts", item, kMaxHosts)));
    for (std::int64_t number = *low; number <= *high; ++number) {
      // Leading zeros of the low end set the width: [01-10] is 01 .. 10, [1-10] is 1 .. 10.
      const std::size_t width = low_text.front() == '0' ? low_text.size() : 1;
      SORTIE_TRY(expand_item(fmt::format("{}{:0{}}{}", before, number, width, after), names));
    }
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> expand_host_expression(std::string_view expression) {
  std::vector<std::string> names;
  for (const std::string_view item : split(expression, ','))
    SORTIE_TRY(expand_item(trim(item), names));
  return names;
}

Result<std::vector<HostSlots>> parse_host_line(std::string_view line, int default_slots) {
  line = trim(line);
  const auto space = line.find_first_of(" \t");
  const std::string_view hosts = line.substr(0, space);
  const std::string_view rest = space == line.npos ? std::string_view() : trim(line.substr(space));
  std::vector<int> slots;
  if (rest.empty()) {
    for (int i = 0; i < default_slots; ++i) slots.push_back(i);
  } else if (rest.starts_with("slots=")) {
    const std::string_view value = rest.substr(6);
    const bool list = value.find(',') != value.npos;
    std::vector<std::string_view> parts = split(value, ',');
    if (list && parts.back().empty()) parts.pop_back();  // "slots=3," is the one device 3
    for (const std::string_view part : parts) {
      const auto number = parse_number(trim(part));
      if (!number || *number > kMaxSlot || (!list && *number == 0))
        return std::unexpected(host_error(
            fmt::format("'{}': '{}' is no slot count or device list; write slots=4 or slots=0,2,5",
                        line, rest)));
      if (!list)
        for (int i = 0; i < *number; ++i) slots.push_back(i);
      else if (std::ranges::find(slots, static_cast<int>(*number)) != slots.end())
        return std::unexpected(
            host_error(fmt::format("'{}': device {} is listed twice", line, *number)));
      else
        slots.push_back(static_cast<int>(*number));
    }
  } else {
    return std::unexpected(host_error(fmt::format(
        "'{}': '{}' is unknown; a host line is NAME or NAME slots=N or NAME slots=0,2,5", line,
        rest)));
  }
  SORTIE_ASSIGN_OR_RETURN(const std::vector<std::string> names, expand_host_expression(hosts));
  std::vector<HostSlots> out;
  for (const std::string& name : names) out.push_back({name, slots});
  return out;
}

namespace {

/// Adds `found` to `all`, refusing a name that is there already.
Result<> add_hosts(std::vector<HostSlots> found, const std::string& place,
                   std::vector<HostSlots>& all, std::map<std::string, std::string>& places) {
  for (HostSlots& host : found) {
    const auto [it, fresh] = places.emplace(host.name, place);
    if (!fresh)
      return std::unexpected(
          host_error(fmt::format("{}: host {} is already given in {}; name each host once", place,
                                 host.name, it->second)));
    all.push_back(std::move(host));
  }
  if (all.size() > kMaxHosts)
    return std::unexpected(host_error(fmt::format("{}: more than {} hosts", place, kMaxHosts)));
  return {};
}

}  // namespace

Result<std::vector<HostSlots>> parse_host_file(std::string_view text, std::string_view where,
                                               int default_slots) {
  std::vector<HostSlots> all;
  std::map<std::string, std::string> places;
  int number = 0;
  for (std::size_t begin = 0; begin <= text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    line = trim(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::string place = fmt::format("{}:{}", where, number + 1);
    auto found = parse_host_line(line, default_slots);
    if (!found) return std::unexpected(with_context(std::move(found).error(), place));
    SORTIE_TRY(add_hosts(std::move(*found), place, all, places));
  }
  if (all.empty()) return std::unexpected(host_error(fmt::format("{}: no hosts in it", where)));
  return all;
}

Result<std::vector<HostSlots>> job_hosts(const RunnerConfig& runner) {
  const int default_slots = static_cast<int>(runner.default_slots);
  if (!runner.hosts_file.empty()) {
    SORTIE_ASSIGN_OR_RETURN(const std::string text, read_file(runner.hosts_file, 16u << 20));
    return parse_host_file(text, runner.hosts_file, default_slots);
  }
  std::vector<HostSlots> all;
  std::map<std::string, std::string> places;
  for (std::size_t i = 0; i < runner.hosts.size(); ++i) {
    const std::string place = fmt::format("runner.hosts[{}]", i);
    auto found = parse_host_line(runner.hosts[i], default_slots);
    if (!found) return std::unexpected(with_context(std::move(found).error(), place));
    SORTIE_TRY(add_hosts(std::move(*found), place, all, places));
  }
  if (all.empty()) return parse_host_line("localhost", default_slots);
  return all;
}

namespace {

/// A name cut into text, its last run of digits, and text.
struct NameParts {
  std::string before, digits, after;
};
NameParts cut_name(const std::string& name) {
  std::size_t end = name.size();
  while (end > 0 && (name[end - 1] < '0' || name[end - 1] > '9')) --end;
  std::size_t begin = end;
  while (begin > 0 && name[begin - 1] >= '0' && name[begin - 1] <= '9') --begin;
  // Numbers beyond 9 digits are names, not counters.
  if (end - begin == 0 || end - begin > 9) return {name, "", ""};
  return {name.substr(0, begin), name.substr(begin, end - begin), name.substr(end)};
}

}  // namespace

std::string fold_host_names(std::vector<std::string> names) {
  std::ranges::sort(names);
  struct Group {
    std::string before, after;
    bool numbered = false;
    std::size_t width = 0;  // digits where padded with zeros, else 0
    std::vector<int> numbers;
  };
  std::vector<Group> groups;
  for (const std::string& name : names) {
    const NameParts parts = cut_name(name);
    const bool numbered = !parts.digits.empty();
    // Width matters only where zeros lead; "9" and "10" go together, "09" and "10" too, "9" and
    // "09" do not.
    auto fits = [&](Group& group) {
      if (group.before != parts.before || group.after != parts.after ||
          group.numbered != numbered || !numbered)
        return false;
      const bool padded = parts.digits.size() > 1 && parts.digits.front() == '0';
      if (padded) return group.width == parts.digits.size();
      return group.width == 0 || group.width == parts.digits.size();
    };
    auto it = std::ranges::find_if(groups, fits);
    if (it == groups.end()) {
      const bool padded = numbered && parts.digits.size() > 1 && parts.digits.front() == '0';
      groups.push_back({parts.before, parts.after, numbered, padded ? parts.digits.size() : 0, {}});
      it = std::prev(groups.end());
    }
    if (numbered) it->numbers.push_back(std::stoi(parts.digits));
  }
  std::string out;
  for (Group& group : groups) {
    if (!out.empty()) out += ',';
    if (!group.numbered) {
      out += group.before;
      continue;
    }
    std::ranges::sort(group.numbers);
    group.numbers.erase(std::unique(group.numbers.begin(), group.numbers.end()),
                        group.numbers.end());
    const auto number = [&](int value) {
      return fmt::format("{:0{}}", value, std::max<std::size_t>(group.width, 1));
    };
    std::string ranges;
    for (std::size_t i = 0; i < group.numbers.size();) {
      std::size_t last = i;
      while (last + 1 < group.numbers.size() && group.numbers[last + 1] == group.numbers[last] + 1)
        ++last;
      if (!ranges.empty()) ranges += ',';
      ranges += number(group.numbers[i]);
      if (last > i) ranges += "-" + number(group.numbers[last]);
      i = last + 1;
    }
    out += group.numbers.size() == 1 ? group.before + ranges + group.after
                                     : group.before + "[" + ranges + "]" + group.after;
  }
  return out;
}

}  // namespace sortie::config
