// Fuzzes host files, single host lines and host expressions. Names follow the grammar that other
// parts rely on, and folding names to ranges is exact.
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/config/hostlist.h"

namespace {

using namespace sortie::config;

using NameSet = std::set<std::string>;

/// A valid name needs no quoting in commands, paths and messages.
void check_name(const std::string& name) {
  SORTIE_CHECK(!name.empty() && name.size() <= 253, "{}", name);
  const bool literal = name.front() == '[';
  SORTIE_CHECK(!literal || name.back() == ']', "{}", name);
  const std::string_view allowed = literal ? "[]:.%_-" : "._-";
  SORTIE_CHECK(literal || (name.front() != '-' && name.front() != '.'), "{}", name);
  for (const char c : name)
    SORTIE_CHECK((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                     allowed.contains(c),
                 "{}", name);
}

/// Larger lists are sampled: checking all names would find nothing new and take the time of many
/// other inputs.
constexpr std::size_t kMany = 4096;

std::size_t stride_of(std::size_t count) {
  return 1 + count / kMany;
}

void check_fold(const std::vector<std::string>& names) {
  if (names.size() > kMany) return;
  const std::string folded = fold_host_names(names);
  const auto expanded = expand_host_expression(folded);
  SORTIE_CHECK(expanded.has_value(), "{}: {}", folded, expanded ? "" : expanded.error().message);
  SORTIE_CHECK(NameSet(expanded->begin(), expanded->end()) == NameSet(names.begin(), names.end()),
               "{}", folded);
  SORTIE_CHECK(expanded->size() == names.size(), "{}", folded);
}

void check_line(std::string_view line) {
  const auto hosts = parse_host_line(line, 3);
  if (!hosts) {
    SORTIE_CHECK(hosts.error().code == sortie::ErrorCode::config);
    SORTIE_CHECK(!hosts.error().message.empty());
    return;
  }
  SORTIE_CHECK(!hosts->empty() && hosts->size() <= kMaxHosts);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < hosts->size(); i += stride_of(hosts->size())) {
    const HostSlots& host = (*hosts)[i];
    check_name(host.name);
    names.push_back(host.name);
    SORTIE_CHECK(!host.slots.empty() && host.slots.size() <= kMaxSlots);
    for (const int slot : host.slots) SORTIE_CHECK(slot >= 0 && slot < kMaxSlots);
  }
  SORTIE_CHECK(NameSet(names.begin(), names.end()).size() == names.size(), "a host twice");
  check_fold(names);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto file = parse_host_file(text, "fuzz", 2);
  if (!file)
    SORTIE_CHECK(file.error().message.starts_with("fuzz:"), "{}", file.error().message);
  else
    for (std::size_t i = 0; i < file->size(); i += stride_of(file->size()))
      check_name((*file)[i].name);

  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    check_line(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (const auto names = expand_host_expression(text)) {
    for (std::size_t i = 0; i < names->size(); i += stride_of(names->size()))
      check_name((*names)[i]);
    if (!names->empty()) check_fold(*names);
  }
  return 0;
}
