// Expands host expressions (names, ranges, groups and exclusions) to lists of names.
#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "common/config/hostgroups.h"
#include "common/config/hostlist.h"
#include "common/config/text.h"

namespace sortie::config {
namespace {

constexpr std::size_t kMaxNameBytes = 253;
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

/// Whether the text is an IPv6 literal like "[fe80::1%eth0]" and not a range.
bool is_ipv6_literal(std::string_view text) {
  if (!text.starts_with('[') || !text.ends_with(']')) return false;
  const std::string_view inner = text.substr(1, text.size() - 2);
  const std::size_t percent = inner.find('%');
  const std::string_view zone = percent == inner.npos ? "x" : inner.substr(percent + 1);
  const std::string address(inner.substr(0, percent));
  in6_addr parsed;
  // inet_pton stops at a NUL and would ignore the rest.
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
  if (const auto slots = name.find(" slots="); slots != name.npos)
    return bad(fmt::format("{} is no host name, and lists of hosts have no slots; use --slots {}",
                           quote(shorten(name)), shorten(name.substr(slots + 7))));
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

/// The numbers of a range like "01-08,11", as text.
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

/// The elements of an expression, separated by commas outside of brackets.
Result<std::vector<std::string_view>> elements_of(std::string_view expression) {
  std::vector<std::string_view> elements;
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t i = 0; i <= expression.size(); ++i) {
    if (i < expression.size() && (inside || expression[i] != ',')) {
      if (expression[i] == '[') inside = true;
      if (expression[i] == ']') inside = false;
      continue;
    }
    elements.push_back(trim(expression.substr(begin, i - begin)));
    if (elements.back().empty())
      return bad("a host name is empty; write a name between the commas");
    begin = i + 1;
  }
  return elements;
}

/// The selected hosts, in the order in which they were named.
class Selection {
 public:
  Selection(std::string_view expression, const HostGroups* groups)
      : expression_(expression), groups_(groups != nullptr ? *groups : none_) {}

  /// A host that is named twice is an error, but groups may overlap.
  Result<> add(std::string_view element) {
    const bool group = element.starts_with('@');
    SORTIE_ASSIGN_OR_RETURN(Names names, expand(element));
    for (std::string& name : names) {
      const auto [entry, is_new] = places_.emplace(name, Place{names_.size(), group});
      if (is_new) {
        names_.push_back(std::move(name));
      } else if (!group && !entry->second.from_group) {
        return bad(
            fmt::format("host {} is twice in {}; remove one", name, quote(shorten(expression_))));
      }
    }
    if (places_.size() > kMaxHosts)
      return bad(fmt::format("more than {} hosts; split the job", kMaxHosts));
    return {};
  }

  /// An exclusion that removes no host is an error, because the job might run on a host that was
  /// meant to be left out. Groups are exempt: "@broken" may list hosts of other jobs.
  Result<> remove(std::string_view element) {
    SORTIE_ASSIGN_OR_RETURN(const Names names, expand(element));
    std::size_t removed = 0;
    for (const std::string& name : names) {
      const auto found = places_.find(name);
      if (found == places_.end()) continue;
      names_[found->second.index].clear();
      places_.erase(found);
      ++removed;
    }
    if (removed > 0 || element.starts_with('@') || groups_.is_any()) return {};
    return bad(fmt::format("{} is not among the hosts and can not be left out; check its spelling",
                           quote(shorten(element))));
  }

  Names take() {
    std::erase(names_, "");
    return std::move(names_);
  }

 private:
  struct Place {
    std::size_t index = 0;
    bool from_group = false;
  };

  Result<Names> expand(std::string_view element) const {
    if (element.starts_with('@')) return groups_.hosts(element.substr(1));
    Names names;
    SORTIE_TRY(expand_name(element, names));
    return names;
  }

  static inline const HostGroups none_;
  std::string_view expression_;
  const HostGroups& groups_;
  Names names_;
  std::unordered_map<std::string, Place> places_;
};

}  // namespace

Result<std::vector<std::string>> expand_host_expression(std::string_view expression,
                                                        const HostGroups* groups) {
  SORTIE_ASSIGN_OR_RETURN(const auto elements, elements_of(expression));
  Selection selection(expression, groups);
  for (const std::string_view element : elements) {
    if (!element.starts_with('!'))
      SORTIE_TRY(selection.add(element));
    else
      SORTIE_TRY(selection.remove(trim(element.substr(1))));
  }
  Names names = selection.take();
  if (names.empty() && !(groups != nullptr && groups->is_any()))
    return bad(fmt::format("no host is left of {}; leave fewer out", quote(shorten(expression))));
  return names;
}

Result<std::vector<std::string>> exclude_hosts(const std::vector<std::string>& names,
                                               std::string_view expression,
                                               const HostGroups* groups) {
  SORTIE_ASSIGN_OR_RETURN(const auto elements, elements_of(expression));
  Selection selection(expression, groups);
  for (const std::string& name : names) SORTIE_TRY(selection.add(name));
  for (const std::string_view element : elements) SORTIE_TRY(selection.remove(element));
  Names left = selection.take();
  if (left.empty())
    return bad(
        fmt::format("no host is left without {}; leave fewer out", quote(shorten(expression))));
  return left;
}

std::vector<std::string> mentioned_groups(std::string_view expression) {
  Names groups;
  const auto elements = elements_of(expression);
  if (!elements) return groups;
  for (std::string_view element : *elements) {
    if (element.starts_with('!')) element = trim(element.substr(1));
    if (element.starts_with('@')) groups.emplace_back(element.substr(1));
  }
  return groups;
}

bool mentions_group(std::string_view expression) {
  return !mentioned_groups(expression).empty();
}

}  // namespace sortie::config
