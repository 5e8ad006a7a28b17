#include "launcher/chaos/fault.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "common/base/check.h"
#include "common/config/text.h"

namespace sortie::launcher {
namespace {

constexpr std::array<std::pair<std::string_view, FaultKind>, 5> kKinds = {
    {{"kill", FaultKind::kill},
     {"term", FaultKind::term},
     {"stop", FaultKind::stop},
     {"link", FaultKind::link},
     {"supervisor", FaultKind::supervisor}}};

/// The PID may belong to another process by now, hence the check of its environment. $1: PID, $2:
/// run ID, $3: signal.
constexpr const char* kScript =
    R"(if tr '\0' '\n' < "/proc/$1/environ" 2> /dev/null | grep -qxF "SORTIE_RUN_ID=$2"; then
  kill -s "$3" "$1" && echo "  sent SIG$3 to $1"
else
  echo "  $1 is no longer a process of the run"
fi
exit 0)";

const char* signal_of(FaultKind kind) {
  switch (kind) {
    case FaultKind::kill:
      return "KILL";
    case FaultKind::term:
      return "TERM";
    case FaultKind::stop:
      return "STOP";
    case FaultKind::link:
    case FaultKind::supervisor:
      break;
  }
  return "KILL";
}

}  // namespace

std::string_view fault_name(FaultKind kind) {
  return std::ranges::find(kKinds, kind, &std::pair<std::string_view, FaultKind>::second)->first;
}

std::vector<std::string> fault_names() {
  std::vector<std::string> names;
  for (const auto& [name, kind] : kKinds) names.emplace_back(name);
  return names;
}

Result<std::vector<FaultKind>> parse_faults(std::string_view text) {
  std::vector<FaultKind> kinds;
  for (;;) {
    const std::size_t comma = text.find(',');
    const std::string_view name = text.substr(0, comma);
    const auto* known =
        std::ranges::find(kKinds, name, &std::pair<std::string_view, FaultKind>::first);
    if (known == kKinds.end())
      return fail(ErrorCode::usage,
                  fmt::format("sortie: --faults: '{}' is no fault; use kill, term, stop, "
                              "link, supervisor, with commas between",
                              config::shorten(name)));
    if (std::ranges::find(kinds, known->second) == kinds.end()) kinds.push_back(known->second);
    if (comma == text.npos) return kinds;
    text.remove_prefix(comma + 1);
  }
}

std::string fault_text(const Fault& fault) {
  if (!fault.victim) return fmt::format("{} killed", fault_name(fault.kind));
  if (fault.kind == FaultKind::link) return fmt::format("link to {} cut", fault.victim->host);
  const Victim& victim = *fault.victim;
  return fmt::format("{} rank {}{} on {} (pid {})", fault_name(fault.kind), victim.rank,
                     victim.site.empty() ? "" : " of site " + victim.site, victim.host, victim.pid);
}

FaultSource::FaultSource(std::uint64_t seed, std::vector<FaultKind> kinds)
    : random_(seed), kinds_(std::move(kinds)) {
  SORTIE_CHECK(!kinds_.empty(), "no kind of fault");
}

std::optional<Fault> FaultSource::next(const std::vector<Victim>& running) {
  // Both numbers are drawn on every call, so that later faults do not depend on which ranks ran.
  const std::uint64_t kind = random_(), rank = random_();
  std::vector<FaultKind> possible = kinds_;
  if (running.empty())
    std::erase_if(possible, [](FaultKind one) { return one != FaultKind::supervisor; });
  if (possible.empty()) return std::nullopt;
  Fault fault{possible[kind % possible.size()], std::nullopt};
  if (fault.kind != FaultKind::supervisor) fault.victim = running[rank % running.size()];
  return fault;
}

std::vector<std::string> fault_command(const Fault& fault) {
  SORTIE_CHECK(fault.victim.has_value() && fault.kind != FaultKind::link,
               "only signals to a rank have a command");
  return {"/bin/sh",
          "-c",
          kScript,
          "sh",
          std::to_string(fault.victim->pid),
          fault.victim->run,
          signal_of(fault.kind)};
}

}  // namespace sortie::launcher
