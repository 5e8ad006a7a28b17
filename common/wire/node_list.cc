#include "common/wire/node_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

namespace sortie::wire {
namespace {

constexpr std::size_t kMaxNodes = 65536, kMaxNameBytes = 255;
constexpr std::uint64_t kMaxRanks = 1u << 20;
// Digits of numbers that fit a std::uint64_t, with room for counting up.
constexpr std::size_t kMaxDigits = 18;

/// A name split at its last number: "rack2-gpu07.site" is {"rack2-gpu", 7, 2, ".site"}.
struct Numbered {
  std::string prefix, suffix;
  std::uint64_t number = 0;
  std::uint32_t width = 0;
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::optional<Numbered> last_number(const std::string& name) {
  const auto last = std::find_if(name.rbegin(), name.rend(), is_digit);
  if (last == name.rend()) return std::nullopt;
  const auto first = std::find_if_not(last, name.rend(), is_digit);
  const auto end = static_cast<std::size_t>(name.rend() - last);
  const auto begin = static_cast<std::size_t>(name.rend() - first);
  if (end - begin > kMaxDigits) return std::nullopt;
  Numbered out{name.substr(0, begin), name.substr(end)};
  std::from_chars(name.data() + begin, name.data() + end, out.number);
  out.width = static_cast<std::uint32_t>(end - begin);
  return out;
}

/// The name of host `index` of a run.
std::string name_of(const NodeRun& run, std::uint32_t index) {
  if (run.width == 0) return run.prefix;
  return fmt::format("{}{:0{}}{}", run.prefix, run.first + index, run.width, run.suffix);
}

Error bad(std::string text) {
  return {ErrorCode::protocol, "list of hosts: " + std::move(text)};
}

}  // namespace

std::vector<NodeRun> fold_nodes(const NodeList& nodes) {
  std::vector<NodeRun> runs;
  for (const auto& [name, ranks] : nodes) {
    if (!runs.empty()) {
      NodeRun& run = runs.back();
      // Compare whole names, so that "h9" and "h10", or "h09" and "h10", are handled correctly.
      if (run.ranks == ranks && run.width > 0 && name_of(run, run.count) == name) {
        ++run.count;
        continue;
      }
    }
    NodeRun& run = runs.emplace_back();
    run.ranks = ranks;
    if (auto numbered = last_number(name)) {
      run.prefix = std::move(numbered->prefix);
      run.suffix = std::move(numbered->suffix);
      run.first = numbered->number;
      run.width = numbered->width;
    } else {
      run.prefix = name;
    }
  }
  return runs;
}

Result<NodeList> expand_nodes(const std::vector<NodeRun>& runs) {
  NodeList nodes;
  std::uint64_t ranks = 0;
  for (const NodeRun& run : runs) {
    if (run.count == 0 || run.ranks == 0)
      return std::unexpected(bad("an entry counts no host or no rank"));
    if (run.width == 0 && run.count != 1) return std::unexpected(bad("several hosts of one name"));
    if (run.width > kMaxDigits || run.prefix.size() + run.suffix.size() > kMaxNameBytes)
      return std::unexpected(bad("a name is too long"));
    ranks += std::uint64_t{run.count} * run.ranks;
    if (nodes.size() + run.count > kMaxNodes || ranks > kMaxRanks)
      return std::unexpected(
          bad(fmt::format("more than {} hosts or {} ranks", kMaxNodes, kMaxRanks)));
    for (std::uint32_t i = 0; i < run.count; ++i) {
      nodes.emplace_back(name_of(run, i), run.ranks);
      if (nodes.back().first.empty() || nodes.back().first.size() > kMaxNameBytes)
        return std::unexpected(bad("a name is empty or too long"));
    }
  }
  return nodes;
}

}  // namespace sortie::wire
