#include "launcher/exec/outcome.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "common/base/exit_code.h"
#include "common/config/hostlist.h"

namespace sortie::launcher {

using Kind = Outcome::Kind;

std::string_view outcome_name(Kind kind) {
  switch (kind) {
    case Kind::waiting:
      return "waiting";
    case Kind::ok:
      return "ok";
    case Kind::failed:
      return "failed";
    case Kind::timeout:
      return "timeout";
    case Kind::unreachable:
      return "unreachable";
    case Kind::not_started:
      return "not_started";
    case Kind::lost:
      return "lost";
    case Kind::stopped:
      return "stopped";
    case Kind::skipped:
      return "skipped";
  }
  return "?";
}

int exec_exit_code(std::span<const HostOutcome> hosts, std::optional<int> interrupted) {
  if (interrupted) return *interrupted;
  const Outcome* first = nullptr;
  for (const HostOutcome& host : hosts)
    if (host.outcome.kind != Kind::ok && (!first || host.outcome.order < first->order))
      first = &host.outcome;
  if (first == nullptr) return kExitOk;
  return first->exit_code != 0 ? first->exit_code : kExitFailed;
}

std::string folded_with_count(const std::vector<std::string>& hosts) {
  return fmt::format("{} ({})", config::fold_host_names(hosts), hosts.size());
}

std::string failure_table(std::span<const HostOutcome> hosts) {
  struct Row {
    std::string name, hosts, reason;
  };
  // In order of the first failure of each sort: the cause stands on top.
  std::map<std::pair<Kind, std::string>, std::pair<std::size_t, std::vector<std::string>>> groups;
  std::size_t ok = 0;
  for (const HostOutcome& host : hosts) {
    if (host.outcome.kind == Kind::ok) {
      ++ok;
      continue;
    }
    auto& [order, names] = groups[{host.outcome.kind, host.outcome.reason}];
    order = names.empty() ? host.outcome.order : std::min(order, host.outcome.order);
    names.push_back(host.host);
  }
  if (ok == hosts.size()) return {};
  std::vector<std::pair<std::size_t, Row>> rows;
  std::size_t name_width = 0, host_width = 0;
  for (const auto& [key, group] : groups) {
    Row row{std::string(outcome_name(key.first)), folded_with_count(group.second), key.second};
    name_width = std::max(name_width, row.name.size());
    host_width = std::max(host_width, row.hosts.size());
    rows.emplace_back(group.first, std::move(row));
  }
  std::ranges::stable_sort(rows, {}, &std::pair<std::size_t, Row>::first);
  host_width = std::min<std::size_t>(host_width, 40);
  std::string text = fmt::format("{} of {} host{} failed", hosts.size() - ok, hosts.size(),
                                 hosts.size() == 1 ? "" : "s");
  for (const auto& [order, row] : rows)
    text += fmt::format("\n  {:<{}}  {:<{}}  {}", row.name, name_width, row.hosts, host_width,
                        row.reason);
  return text;
}

}  // namespace sortie::launcher
