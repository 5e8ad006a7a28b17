// The supervisor's answers to what runners say: output, ends of ranks, MPI, lost hosts.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "launcher/supervisor.h"

namespace sortie::launcher {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::size_t kKeptLines = 20;
constexpr std::size_t kKeptLineBytes = 500;

}  // namespace

void Supervisor::on_message(Host& host, wire::Message message) {
  if (const auto* output = std::get_if<wire::Output>(&message)) {
    on_output(host, *output);
  } else if (const auto* event = std::get_if<wire::RankEvent>(&message)) {
    on_event(host, *event);
  } else if (const auto* started = std::get_if<wire::RankStarted>(&message)) {
    if (!owns(host, started->rank)) return;
    ranks_[started->rank].pid = started->pid;
    parts_.folder.event(
        "rank_started",
        {{"rank", started->rank}, {"host", host.plan->name}, {"pid", started->pid}});
  } else if (const auto* exited = std::get_if<wire::RankExited>(&message)) {
    if (owns(host, exited->rank)) on_rank_exited(host, *exited);
  } else if (std::holds_alternative<wire::Finished>(message)) {
    on_finished(host);
  } else if (const auto* error = std::get_if<wire::RunnerError>(&message)) {
    const std::string where = error->rank >= 0
                                  ? fmt::format("{}: rank {}", host.plan->name, error->rank)
                                  : host.plan->name;
    decide(exit_code_for(runner_error_code(*error)), fmt::format("{}: {}", where, error->message),
           {{"host", host.plan->name}, {"code", error->code}});
  } else if (auto* fence = std::get_if<wire::PmixFence>(&message)) {
    forward(relay_.on_fence(host.index, std::move(*fence)));
  } else if (const auto* request = std::get_if<wire::PmixModexRequest>(&message)) {
    forward(relay_.on_modex_request(host.index, *request));
  } else if (auto* reply = std::get_if<wire::PmixModexReply>(&message)) {
    forward(relay_.on_modex_reply(host.index, std::move(*reply)));
  } else if (const auto* abort = std::get_if<wire::PmixAbort>(&message)) {
    if (!owns(host, abort->rank)) return;
    const int code = abort->status & 0xff;
    if (!verdict_) cause_ = abort->rank;
    decide(code == 0 ? kExitFailed : code,
           rank_report(abort->rank, fmt::format("called MPI_Abort({})", abort->status)),
           {{"host", host.plan->name},
            {"rank", abort->rank},
            {"what", "mpi_abort"},
            {"status", abort->status}});
  } else {
    give_up(host, fmt::format("runner sent {} out of turn", wire::message_name(message)));
  }
}

bool Supervisor::owns(const Host& host, std::uint32_t rank) const {
  return rank < ranks_.size() && ranks_[rank].host == host.index;
}

/// A peer that breaks the protocol is as good as gone.
void Supervisor::give_up(Host& host, std::string why) {
  host.session->close();
  on_lost(host, {ErrorCode::protocol, std::move(why)});
}

void Supervisor::on_finished(Host& host) {
  if (host.state != HostState::running) return;
  for (const RankPlan& rank : host.plan->ranks)
    if (!ranks_[rank.rank].status)
      return give_up(host, fmt::format("runner finished without the end of rank {}", rank.rank));
  end_of(host, HostState::finished);
}

void Supervisor::on_output(Host& host, const wire::Output& output) {
  if (!owns(host, output.rank)) return;
  parts_.folder.log(output.rank, output.stream, output.bytes);
  parts_.console.output(output.rank, host.plan->name, output.stream, output.bytes);
  if (output.stream == wire::Stream::err) {
    Rank& rank = ranks_[output.rank];
    for (const char c : output.bytes) {
      if (c != '\n') {
        if (rank.partial.size() < kKeptLineBytes) rank.partial += c;
        continue;
      }
      rank.last_lines.push_back(std::move(rank.partial));
      rank.partial.clear();
      if (rank.last_lines.size() > kKeptLines) rank.last_lines.pop_front();
    }
  }
  // Credits in pieces: one small frame per 64 KiB instead of one per line.
  constexpr std::uint64_t kCreditPiece = 64u << 10;
  host.unacknowledged += output.bytes.size();
  if (host.unacknowledged >= kCreditPiece) {
    host.session->send(wire::OutputCredit{host.unacknowledged});
    host.unacknowledged = 0;
  }
}

void Supervisor::on_event(const Host& host, const wire::RankEvent& event) {
  if (!owns(host, event.rank)) return;
  const auto json = parse_event(event.json);
  if (!json) {
    log::debug("rank {}: an event that is no JSON object with a type was ignored", event.rank);
    return;
  }
  parts_.folder.metric(*json);
  parts_.console.event(*json);
}

std::string Supervisor::rank_report(std::uint32_t rank_number, const std::string& what) const {
  const Rank& rank = ranks_[rank_number];
  std::string text = fmt::format("rank {} on {} (pid {}) {}", rank_number,
                                 hosts_[rank.host].plan->name, rank.pid, what);
  std::vector<std::string> lines(rank.last_lines.begin(), rank.last_lines.end());
  if (!rank.partial.empty()) lines.push_back(rank.partial);
  if (lines.empty()) return text;
  text += "\n  its last lines on stderr:";
  for (const std::string& line : lines) text += "\n    " + printable(line);
  return text;
}

void Supervisor::on_rank_exited(Host& host, const wire::RankExited& exited) {
  using Kind = ProcessStatus::Kind;
  ProcessStatus status{exited.signaled ? Kind::signaled : Kind::exited,
                       static_cast<int>(exited.code), exited.core_dumped != 0};
  ranks_[exited.rank].status = status;
  parts_.console.end_of_rank(exited.rank, host.plan->name);
  const Json details = {{"rank", exited.rank},
                        {"host", host.plan->name},
                        {"pid", ranks_[exited.rank].pid},
                        {"status", status.to_string()},
                        {"stopped", exited.stopped != 0},
                        {"oom_killed", exited.oom_killed != 0},
                        {"leftovers_killed", exited.leftovers_killed},
                        {"host_time_unix_ms", exited.time_unix_ms}};
  parts_.folder.event("rank_exited", details);
  if (verdict_) return;
  if (exited.stopped)  // not by us: the runner has lost this launcher, or was told to end
    return decide(kExitLost,
                  fmt::format("{}: {}: the runner stopped its ranks by itself; see whether this "
                              "machine slept or the network stalled (runner.heartbeat_timeout)",
                              host.plan->name, error_code_name(ErrorCode::lost)),
                  details);
  if (status.success()) return;
  cause_ = exited.rank;
  std::string what = "ended by " + status.to_string();
  if (status.kind == Kind::exited) what = fmt::format("failed with {}", status.to_string());
  if (exited.oom_killed) what += ", killed for lack of memory";
  decide(status.shell_code(), rank_report(exited.rank, what), details);
}

void Supervisor::on_lost(Host& host, Error error) {
  if (host.state == HostState::finished) {  // the runner ended after Goodbye
    if (leaving_ > 0 && --leaving_ == 0) wake();
    return;
  }
  if (host.state != HostState::running) return;
  end_of(host, HostState::lost);
  for (const RankPlan& rank : host.plan->ranks)
    parts_.console.end_of_rank(rank.rank, host.plan->name);
  parts_.folder.event("host_lost", {{"host", host.plan->name}, {"message", error.message}});
  const std::string text =
      fmt::format("{}: {}: {}", host.plan->name, error_code_name(ErrorCode::lost), error.message);
  if (verdict_) parts_.console.error(text);
  decide(kExitLost, text, {{"host", host.plan->name}, {"what", "lost"}});
}

void Supervisor::forward(std::vector<PmixRelay::Outgoing> messages) {
  for (PmixRelay::Outgoing& outgoing : messages)
    hosts_[outgoing.host].session->send(outgoing.message);
}

}  // namespace sortie::launcher
