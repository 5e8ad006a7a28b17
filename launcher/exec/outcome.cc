#include "launcher/exec/outcome.h"

#include <fmt/core.h>

#include <algorithm>

#include "common/base/exit_code.h"
#include "common/base/quantity.h"
#include "common/config/hostlist.h"
#include "launcher/host/fold_failures.h"
#include "launcher/host/host_texts.h"

namespace sortie::launcher {

using Kind = Outcome::Kind;

namespace {
constexpr char kBetween = '\x1f';  // separates kind and reason
}  // namespace

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

std::string reason_of(Kind kind, const Error& error) {
  const std::string_view code = error_code_name(error.code);
  return one_line(code == outcome_name(kind) ? error.message
                                             : fmt::format("{}: {}", code, error.message));
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
  // Groups are in the order of their first hosts, as given by the user.
  std::vector<std::pair<std::string, std::string>> failures;
  for (const HostOutcome& host : hosts)
    if (host.outcome.kind != Kind::ok)
      failures.emplace_back(host.host, fmt::format("{}{}{}", outcome_name(host.outcome.kind),
                                                   kBetween, host.outcome.reason));
  if (failures.empty()) return {};
  std::vector<Row> rows;
  std::size_t name_width = 0, host_width = 0;
  for (const FoldedFailure& failure : fold_failures(failures)) {
    const std::size_t between = failure.text.find(kBetween);
    rows.push_back({failure.text.substr(0, between), folded_with_count(failure.hosts),
                    failure.text.substr(between + 1)});
    name_width = std::max(name_width, rows.back().name.size());
    host_width = std::max(host_width, rows.back().hosts.size());
  }
  host_width = std::min<std::size_t>(host_width, 40);
  std::string text = fmt::format("{} of {} failed", failures.size(), counted(hosts.size(), "host"));
  for (const Row& row : rows)
    text += fmt::format("\n  {:<{}}  {:<{}}  {}", row.name, name_width, row.hosts, host_width,
                        row.reason);
  return text;
}

}  // namespace sortie::launcher
