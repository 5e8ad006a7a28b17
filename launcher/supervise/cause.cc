#include "launcher/supervise/cause.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <tuple>

#include "common/base/process_status.h"
#include "launcher/console/console.h"
#include "launcher/copy/progress.h"

namespace sortie::launcher {

std::string_view cause_name(Cause::What what) {
  switch (what) {
    case Cause::What::exit:
      return "exit";
    case Cause::What::signal:
      return "signal";
    case Cause::What::oom:
      return "oom";
    case Cause::What::mpi_abort:
      return "mpi_abort";
    case Cause::What::no_finalize:
      return "no_finalize";
    case Cause::What::spawn:
      return "spawn";
    case Cause::What::lost:
      return "lost";
    case Cause::What::timeout:
      return "timeout";
    case Cause::What::runner:
      return "runner";
    case Cause::What::unreachable:
      return "unreachable";
    case Cause::What::interrupted:
      return "interrupted";
    case Cause::What::hang:
      return "hang";
    case Cause::What::planned:
      return "planned";
  }
  return "?";
}

bool is_wanted(Cause::What what) {
  return what == Cause::What::interrupted || what == Cause::What::planned;
}

Cause::What cause_of_error(ErrorCode code) {
  switch (code) {
    case ErrorCode::spawn:
    case ErrorCode::unsupported:  // an MPI program that can not be wired up: never on this host
      return Cause::What::spawn;
    case ErrorCode::lost:
      return Cause::What::lost;
    case ErrorCode::timeout:
      return Cause::What::timeout;
    case ErrorCode::interrupted:
      return Cause::What::interrupted;
    default:
      return Cause::What::runner;
  }
}

namespace {

std::string status_text(const Cause& cause, ProcessStatus::Kind kind) {
  return ProcessStatus{kind, cause.code, cause.core_dumped}.to_string();
}

std::string limit_text(const Cause& cause) {
  if (cause.memory_limit == 0) return {};
  return fmt::format(" (its container may use {}; runner.container.memory)",
                     byte_count(cause.memory_limit));
}

const char* after_kill_text(const Cause& cause) {
  return cause.oom == 1 ? ", after a process of it was killed for lack of memory" : "";
}

std::string how(const Cause& cause) {
  using Kind = ProcessStatus::Kind;
  switch (cause.what) {
    case Cause::What::exit:
      return "failed with " + status_text(cause, Kind::exited) + after_kill_text(cause);
    case Cause::What::signal:
      return "ended by " + status_text(cause, Kind::signaled) + after_kill_text(cause);
    case Cause::What::oom:
      return "ended by " + status_text(cause, Kind::signaled) +
             (cause.oom == 1
                  ? ", killed for lack of memory" + limit_text(cause)
                  : ", very likely for lack of memory: the OOM killer acted on this host" +
                        limit_text(cause));
    case Cause::What::mpi_abort:
      return fmt::format("called MPI_Abort({})", cause.code);
    case Cause::What::no_finalize:
      return "exited with code 0 without MPI_Finalize; ranks that communicate with it would hang";
    default:
      return cause.message;
  }
}

bool is_of_a_rank(Cause::What what) {
  using What = Cause::What;
  return what == What::exit || what == What::signal || what == What::oom ||
         what == What::mpi_abort || what == What::no_finalize;
}

/// 0: always the cause. 1: inflicted from outside. 2: may be a reaction to another failure.
int weight(const Cause& cause) {
  using What = Cause::What;
  switch (cause.what) {
    case What::interrupted:
    case What::unreachable:
    case What::planned:
      return 0;
    case What::oom:
      return 1;
    case What::runner:
      // Of a rank: its container was ended from outside. The end of the rank itself follows, and is
      // no failure of its own.
      return cause.rank ? 1 : 2;
    case What::signal:
      // SIGQUIT: the runner sends it to ranks that hang, for their stacks.
      for (const int own : {SIGABRT, SIGPIPE, SIGTERM, SIGINT, SIGHUP, SIGQUIT})
        if (cause.code == own) return 2;
      return 1;
    default:
      return 2;
  }
}

}  // namespace

std::string cause_text(const Cause& cause) {
  if (!is_of_a_rank(cause.what)) return cause.message;
  std::string text = fmt::format("rank {} on {} (pid {}) {}", cause.rank.value_or(0), cause.host,
                                 cause.pid, how(cause));
  if (cause.last_lines.empty()) return text;
  text += "\n  its last lines on stderr:";
  for (const std::string& line : cause.last_lines) text += "\n    " + printable(line);
  return text;
}

nlohmann::ordered_json cause_json(const Cause& cause) {
  nlohmann::ordered_json json = {{"what", cause_name(cause.what)}};
  if (!cause.host.empty()) json["host"] = cause.host;
  if (cause.rank) json["rank"] = *cause.rank;
  if (cause.pid != 0) json["pid"] = cause.pid;
  switch (cause.what) {
    case Cause::What::exit:
      json["code"] = cause.code;
      break;
    case Cause::What::signal:
    case Cause::What::oom:
      json["signal"] = cause.code;
      json["signal_name"] = signal_name(cause.code);
      json["core_dumped"] = cause.core_dumped;
      break;
    case Cause::What::mpi_abort:
      json["status"] = cause.code;
      break;
    case Cause::What::interrupted:
      if (cause.code > 0) json["signal"] = cause.code;
      break;
    default:
      break;
  }
  if (cause.oom != 0) json["oom_evidence"] = cause.oom == 1 ? "rank" : "host";
  if (cause.memory_limit != 0) json["memory_limit_bytes"] = cause.memory_limit;
  if (!cause.message.empty()) json["message"] = cause.message;
  if (!cause.last_lines.empty()) json["last_lines"] = cause.last_lines;
  json["died_at"] = static_cast<double>(cause.time_unix_ms) / 1000;
  json["exit_code"] = cause.exit_code;
  json["text"] = cause_text(cause);
  return json;
}

std::size_t first_cause(std::span<const Cause> failures) {
  std::size_t best = 0;
  const auto key = [&](std::size_t i) {
    const Cause& cause = failures[i];
    return std::tuple(weight(cause), cause.at_ms, cause.rank.value_or(0));
  };
  for (std::size_t i = 1; i < failures.size(); ++i)
    if (key(i) < key(best)) best = i;
  return best;
}

void Aftermath::add(std::string what) {
  ++total_;
  const auto found = std::ranges::find(kinds_, what, &std::pair<std::string, std::uint32_t>::first);
  if (found != kinds_.end())
    ++found->second;
  else
    kinds_.emplace_back(std::move(what), 1);
}

std::vector<std::pair<std::string, std::uint32_t>> Aftermath::sorted() const {
  auto kinds = kinds_;
  std::ranges::stable_sort(kinds, [](const auto& a, const auto& b) { return a.second > b.second; });
  return kinds;
}

std::string Aftermath::text() const {
  if (total_ == 0) return {};
  std::string text = fmt::format("{} rank{} ended after that:", total_, total_ == 1 ? "" : "s");
  constexpr std::size_t kShown = 4;
  const auto kinds = sorted();
  std::uint32_t shown = 0;
  for (std::size_t i = 0; i < std::min(kinds.size(), kShown); ++i) {
    text += fmt::format("{} {} {}", i == 0 ? "" : ",", kinds[i].second, kinds[i].first);
    shown += kinds[i].second;
  }
  if (shown < total_) text += fmt::format(", {} otherwise", total_ - shown);
  return text;
}

nlohmann::ordered_json Aftermath::json() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [what, count] : sorted()) json[what] = count;
  return json;
}

void HostClock::heard(std::uint64_t host_ms, std::int64_t now_ms) {
  // Ignore invalid times, because the host is not trusted.
  constexpr std::uint64_t kMost = 1ull << 53;
  if (host_ms == 0 || host_ms > kMost) return;
  const std::int64_t lead = now_ms - static_cast<std::int64_t>(host_ms);
  if (now_ms - window_began_ >= kWindowMs) {
    const bool adjacent = now_ms - window_began_ < 2 * kWindowMs;
    if (least_) least_before_ = adjacent ? least_ : std::nullopt;
    least_.reset();
    window_began_ = now_ms;
  }
  least_ = least_ ? std::min(*least_, lead) : lead;
}

std::int64_t HostClock::ours(std::uint64_t host_ms, std::int64_t now_ms) const {
  if (host_ms == 0 || !least_ || host_ms > (1ull << 53)) return now_ms;
  const std::int64_t lead = least_before_ ? std::min(*least_, *least_before_) : *least_;
  return std::min(now_ms, static_cast<std::int64_t>(host_ms) + lead);
}

std::int64_t unix_time_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace sortie::launcher
