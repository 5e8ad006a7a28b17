// Folds host names into an expression: names that differ in one number share a range.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <set>

#include "common/config/hostlist.h"

namespace sortie::config {
namespace {

/// A name, split into runs of text and runs of digits. A folded run ("[1-4]") counts as text.
using Runs = std::vector<std::string>;

bool is_digit_run(const std::string& run) {
  return !run.empty() && run.size() <= 18 && run[0] >= '0' && run[0] <= '9';
}

Runs split(const std::string& name) {
  Runs runs;
  if (name.starts_with('[')) return {name};  // an IPv6 literal
  for (const char c : name) {
    const bool digit = c >= '0' && c <= '9';
    if (runs.empty() || digit != (runs.back()[0] >= '0' && runs.back()[0] <= '9'))
      runs.emplace_back();
    runs.back() += c;
  }
  return runs;
}

std::uint64_t value_of(const std::string& number) {
  std::uint64_t value = 0;
  std::from_chars(number.data(), number.data() + number.size(), value);
  return value;
}

struct ByValue {
  bool operator()(const std::string& a, const std::string& b) const {
    const auto x = value_of(a);
    const auto y = value_of(b);
    return x != y ? x < y : a < b;
  }
};

std::string range_text(const std::set<std::string, ByValue>& numbers) {
  if (numbers.size() == 1) return *numbers.begin();
  std::string text;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const std::string& low = *it;
    const bool padded = low.size() > 1 && low[0] == '0';
    std::string high = low;
    for (++it; it != numbers.end(); ++it) {
      const std::uint64_t next = value_of(high) + 1;
      if (*it != fmt::format("{:0{}}", next, padded ? low.size() : 1)) break;
      if (padded && it->size() != low.size()) break;
      high = *it;
    }
    text += text.empty() ? "[" : ",";
    text += low;
    if (low != high) text.append("-").append(high);
  }
  return text + "]";
}

/// Merges names that differ only in run `index`.
std::vector<Runs> fold_run(const std::vector<Runs>& names, std::size_t index) {
  std::map<Runs, std::set<std::string, ByValue>> groups;
  std::vector<Runs> folded;
  for (const Runs& name : names) {
    if (index >= name.size() || !is_digit_run(name[index])) {
      folded.push_back(name);
      continue;
    }
    Runs rest = name;
    rest[index].clear();
    groups[std::move(rest)].insert(name[index]);
  }
  for (auto& [rest, numbers] : groups) {
    Runs name = rest;
    name[index] = range_text(numbers);
    folded.push_back(std::move(name));
  }
  return folded;
}

/// Compares text as text and numbers by value.
bool natural_less(const Runs& a, const Runs& b) {
  return std::lexicographical_compare(
      a.begin(), a.end(), b.begin(), b.end(), [](const std::string& x, const std::string& y) {
        return is_digit_run(x) && is_digit_run(y) ? ByValue{}(x, y) : x < y;
      });
}

}  // namespace

std::string fold_host_names(std::vector<std::string> names) {
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::vector<Runs> all;
  std::size_t most_runs = 0;
  for (const std::string& name : names) {
    all.push_back(split(name));
    most_runs = std::max(most_runs, all.back().size());
  }
  // Fold the last number first: "rack1-node[01-16]" is preferred to "rack[1-2]-node01".
  for (std::size_t index = most_runs; index-- > 0;) all = fold_run(all, index);
  std::ranges::sort(all, natural_less);
  std::string text;
  for (const Runs& runs : all) {
    if (!text.empty()) text += ',';
    for (const std::string& run : runs) text += run;
  }
  return text;
}

}  // namespace sortie::config
