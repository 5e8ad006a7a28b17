#include "trainer/loop/device_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/json_text.h"
#include "trainer/loop/world.h"
#include "trainer/metrics/launcher_store.h"
#include "trainer/parallel/rank_set.h"

namespace sortie::trainer {
namespace {

constexpr const char* kVerdictKey = "devices";
/// The store has values of at most 4096 bytes, with their escapes.
constexpr std::size_t kMostReasonBytes = 600, kMostVerdictBytes = 2000;
constexpr std::size_t kMostReasons = 3;
/// The other ranks wait longer than rank 0, whose error names the ranks that are missing.
constexpr std::chrono::seconds kRank0First{10};

std::string device_key(std::size_t rank) {
  return fmt::format("device/{}", rank);
}

std::string text_of(const DeviceClaim& claim) {
  return json_text(nlohmann::json{{"host", claim.host},
                                  {"device", claim.device},
                                  {"why_cpu", claim.why_cpu.substr(0, kMostReasonBytes)}});
}

DeviceClaim parse_claim(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto member = [&](const char* name) {
    return json.is_object() && json.contains(name) && json[name].is_string()
               ? json[name].get<std::string>()
               : std::string();
  };
  return {member("host"), member("device"), member("why_cpu")};
}

/// What to do with hosts whose devices are not those of the others. Empty if all hosts are.
std::string leave_out(const RankSet& ranks, const std::set<std::string>& all_hosts, bool launched) {
  if (ranks.hosts().empty() || ranks.hosts() == all_hosts) return "";
  return launched ? fmt::format("leave out {0} (--exclude '{0}')", ranks.host_text())
                  : fmt::format("leave out {}", ranks.host_text());
}

}  // namespace

std::string device_difference(const std::vector<DeviceClaim>& by_rank, bool launched) {
  std::map<std::string, RankSet> devices;
  std::map<std::string, RankSet> reasons;
  std::set<std::string> hosts;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const DeviceClaim& claim = by_rank[rank];
    devices[claim.device].add(static_cast<int>(rank), claim.host);
    if (!claim.why_cpu.empty()) reasons[claim.why_cpu].add(static_cast<int>(rank), claim.host);
    if (!claim.host.empty()) hosts.insert(claim.host);
  }
  if (devices.size() <= 1) return "";
  std::vector<std::string> parts;
  for (const auto& [device, ranks] : devices)
    parts.push_back(fmt::format("{} on {}", device, ranks.text()));
  std::string text = fmt::format("start-up check: device differs: {}", fmt::join(parts, ", "));
  std::size_t told = 0;
  for (const auto& [reason, ranks] : reasons) {
    if (told++ == kMostReasons) {
      text +=
          fmt::format("; {} more reasons are in the ranks' output", reasons.size() - kMostReasons);
      break;
    }
    text += fmt::format("; {}: no GPU: {}", ranks.text(), reason);
  }
  const auto on_cpu = devices.find("cpu");
  if (on_cpu == devices.end()) {
    const auto fewest = std::ranges::min_element(
        devices, {}, [](const auto& entry) { return entry.second.size(); });
    const std::string advice = leave_out(fewest->second, hosts, launched);
    return text +
           "; results of different GPUs differ in their last bits, and replicas with them; " +
           (advice.empty() ? "use GPUs of one model" : advice + ", or use hosts of one kind");
  }
  const std::string advice = leave_out(on_cpu->second, hosts, launched);
  return text +
         fmt::format("; repair {}, {}, or set trainer.device = \"cpu\" to train without GPUs",
                     on_cpu->second.size() == 1 ? "that GPU" : "those GPUs",
                     advice.empty() ? "set the slots of the host to GPUs that work" : advice);
}

namespace {

/// Rank 0 reads what all have said, and tells all of them the result.
Result<std::string> compare_by_launcher(const RankContext& rank, const DeviceClaim& mine) {
  SORTIE_ASSIGN_OR_RETURN(const std::chrono::milliseconds limit, meeting_limit());
  SORTIE_ASSIGN_OR_RETURN(LauncherStore store, LauncherStore::open(rank.socket_path));
  if (rank.rank != 0) {
    const auto number = static_cast<std::size_t>(rank.rank);
    SORTIE_TRY(store.put(device_key(number), text_of(mine), limit));
    SORTIE_ASSIGN_OR_RETURN(
        const std::string verdict,
        store.get(kVerdictKey, limit + kRank0First,
                  "rank 0 has not compared the devices of the ranks: see what happened to rank 0"));
    const auto json = nlohmann::json::parse(verdict, nullptr, false);
    return json.is_object() ? json.value("difference", "") : "";
  }
  std::vector<std::string> keys;
  for (std::size_t other = 1; other < static_cast<std::size_t>(rank.world_size); ++other)
    keys.push_back(device_key(other));
  SORTIE_ASSIGN_OR_RETURN(const auto texts, store.get_all(keys, limit));
  std::vector<DeviceClaim> claims = {mine};
  RankSet missing;
  for (const auto& text : texts) {
    if (!text) missing.add(static_cast<int>(claims.size()), "");
    claims.push_back(text ? parse_claim(*text) : DeviceClaim{});
  }
  if (!missing.empty())
    return fail(ErrorCode::timeout,
                fmt::format("{} {} not chosen a device within SORTIE_COMM_TIMEOUT ({} s): see what "
                            "happened there; a GPU that does not answer blocks its rank",
                            missing.rank_text(), missing.size() == 1 ? "has" : "have",
                            std::chrono::duration_cast<std::chrono::seconds>(limit).count()));
  const std::string difference = device_difference(claims, true);
  nlohmann::json verdict;
  verdict["difference"] = difference.substr(0, kMostVerdictBytes);
  SORTIE_TRY(store.put(kVerdictKey, json_text(verdict), limit));
  return difference;
}

}  // namespace

Result<std::string> compare_devices(Communicator& meeting, const RankContext& rank) {
  if (rank.world_size == 1) return "";
  const DeviceClaim mine{rank.host, rank.compute.name(), rank.compute.why_cpu};
  if (!rank.socket_path.empty()) return compare_by_launcher(rank, mine);
  if (meeting.size() == 1) return "";
  std::vector<DeviceClaim> claims;
  for (const std::string& text : meeting.all_gather(text_of(mine)))
    claims.push_back(parse_claim(text));
  return device_difference(claims, !rank.run_id.empty());
}

}  // namespace sortie::trainer
