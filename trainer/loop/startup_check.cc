#include "trainer/loop/startup_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>

#include "common/base/atomic_file.h"
#include "common/base/split.h"
#include "common/config/hostlist.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace {

/// Hashes are compared by their first digits, names and versions by eye.
std::string short_text(const std::string& value) {
  constexpr std::size_t kHash = 32, kShown = 12;
  const bool hash =
      value.size() >= kHash && value.find_first_not_of("0123456789abcdef") == value.npos;
  return hash ? value.substr(0, kShown) : value;
}

}  // namespace

Result<> check_agreement(Communicator& communicator, const RankContext& context,
                         const std::vector<Agreement>& agreements) {
  std::string mine = context.host;
  for (const Agreement& agreement : agreements) mine += '\n' + agreement.value;
  const std::vector<std::string> all = communicator.all_gather(mine);
  std::vector<std::string> differences;
  for (std::size_t item = 0; item < agreements.size(); ++item) {
    std::map<std::string, std::set<std::string>> hosts_by_value;
    for (const std::string& text : all) {
      const std::vector<std::string> lines = sortie::split(text, '\n');
      hosts_by_value[item + 1 < lines.size() ? lines[item + 1] : "missing"].insert(lines[0]);
    }
    if (hosts_by_value.size() == 1) continue;
    std::vector<std::string> parts;
    for (const auto& [value, hosts] : hosts_by_value)
      parts.push_back(fmt::format("{} on {}", short_text(value),
                                  config::fold_host_names({hosts.begin(), hosts.end()})));
    differences.push_back(fmt::format("start-up check: {} differs: {}; {}", agreements[item].what,
                                      fmt::join(parts, ", "), agreements[item].advice));
  }
  if (!differences.empty())
    return fail(ErrorCode::config, fmt::format("{}", fmt::join(differences, "\n")));
  return {};
}

Result<> share_failure(Communicator& communicator, const RankContext& context,
                       const Result<>& mine) {
  if (communicator.size() == 1) return mine;
  const std::string text =
      mine ? ""
           : fmt::format("{}\n{}{}", static_cast<int>(mine.error().code),
                         context.host.empty() ? "" : fmt::format(" ({})", context.host),
                         fmt::format(": {}", mine.error().message));
  const std::vector<std::string> all = communicator.all_gather(text);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    const std::size_t line = all[rank].find('\n');
    return fail(static_cast<ErrorCode>(std::stoi(all[rank].substr(0, line))),
                fmt::format("rank {}{}", rank, all[rank].substr(line + 1)));
  }
  return {};
}

Result<std::string> build_hash() {
  SORTIE_ASSIGN_OR_RETURN(const std::string program, read_file("/proc/self/exe", 1u << 30));
  return sha256_hex(program);
}

}  // namespace sortie::trainer
