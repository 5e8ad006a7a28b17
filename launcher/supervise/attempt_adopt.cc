// Attempt: how a supervisor adopts a run from a lost one, and how a supervisor notices that it was
// replaced.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/awaitable.hpp>
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "launcher/supervise/attempt.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using OrderedJson = nlohmann::ordered_json;

asio::awaitable<void> Attempt::adopt_host(std::size_t index) {
  Host& host = hosts_[index];
  if (host.state != HostState::connected) co_return;
  const auto session = host.session;
  wire::Adopt order = adopt_order(host);
  auto adopted = co_await session->adopt(std::move(order), parts_.binary.sha256());
  if (adopted) {
    host.state = HostState::ready;
  } else {
    host.state = HostState::lost;
    host.error = std::move(adopted).error();
  }
}

wire::Adopt Attempt::adopt_order(Host& host) {
  wire::Adopt order;
  order.run_id = parts_.folder.id();
  order.attempt = plan_.attempt;
  order.node_rank = host.plan->node_rank;
  order.epoch = parts_.epoch;
  order.link = ++host.link;
  order.events = host.session->events_taken();
  for (const RankPlan& rank : host.plan->ranks)
    for (const wire::Stream stream : {wire::Stream::out, wire::Stream::err})
      order.log_sizes.push_back({rank.rank, stream, parts_.folder.stream_bytes(rank.rank, stream)});
  return order;
}

/// Whether the host may be taken over later. A refusal of its runner, or a key that does not fit,
/// would come again.
static bool may_come_back(const std::optional<Error>& error, const HostSession& session) {
  constexpr std::array kPassing = {ErrorCode::resolve, ErrorCode::connect, ErrorCode::handshake,
                                   ErrorCode::timeout, ErrorCode::lost};
  return error && !session.refusal() && std::ranges::find(kPassing, error->code) != kPassing.end();
}

void Attempt::start_adopted() {
  starting_ = false;
  std::vector<std::string> reached, lost;
  std::string first_error;
  std::vector<Host*> away;
  std::size_t ready = 0;
  for (Host& host : hosts_)
    if (host.state == HostState::ready)
      ++ready;
    else if (hold_.count() > 0 && may_come_back(host.error, *host.session))
      away.push_back(&host);
  // Must precede the first watch().
  names_.await_restored(ready + away.size());
  for (Host& host : hosts_) {
    if (host.state == HostState::ready) {
      reached.push_back(host.plan->name);
      watch(host);
      continue;
    }
    if (std::ranges::find(away, &host) != away.end()) continue;
    host.state = HostState::lost;
    host.session->close();
    lost.push_back(host.plan->name);
    const std::string why = host.error ? host.error->message : "not reached";
    if (first_error.empty())
      first_error =
          fmt::format("{}: {}: {}", host.plan->name, error_code_name(ErrorCode::lost), why);
    parts_.folder.event(JournalEvent::host_lost, {{"host", host.plan->name}, {"message", why}});
  }
  parts_.folder.event(JournalEvent::adopted,
                      {{"epoch", parts_.epoch}, {"hosts", reached}, {"lost", lost}});
  watch_.begin();
  parts_.console.message(fmt::format("adopted {} of {} hosts", reached.size(), hosts_.size()));
  // Within the hold a host that was not reached is like one whose connection has just broken.
  for (Host* const host : away) {
    const Error why = *std::exchange(host->error, std::nullopt);
    host->session->close();
    host->session = std::make_shared<HostSession>(parts_.executor, host->plan->name, job_.runner);
    host->state = HostState::running;
    ++running_;
    start_reconnect(*host, why);
  }
  if (lost.empty()) {
    if (parts_.on_started) parts_.on_started();
    return;
  }
  Cause cause;
  cause.what = Cause::What::lost;
  cause.host = lost.front();
  cause.exit_code = kExitLost;
  cause.message = first_error;
  if (lost.size() > 1)
    cause.message +=
        fmt::format("\n{} hosts were lost in all: {}", lost.size(), config::fold_host_names(lost));
  blame(std::move(cause));
  // Leftovers on these hosts are killed or reported. Ranks of another adopter are left alone.
  for (Host& host : hosts_)
    if (host.state == HostState::lost) start_sweep(host);
}

bool Attempt::superseded() {
  if (superseded_) return true;
  if (ended_ || !parts_.folder.superseded()) return false;
  superseded_ = true;
  for (Host& host : hosts_) {
    host.state = HostState::lost;
    abandon_reconnect(host);
    host.session->close();
  }
  running_ = 0;
  wake();
  return true;
}

}  // namespace sortie::launcher
