#include "launcher/supervisor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/host_name.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "launcher/master_address.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

namespace {

constexpr auto kToken = asio::as_tuple(asio::use_awaitable);

std::vector<std::size_t> hosts_of_ranks(const LaunchPlan& plan) {
  std::vector<std::size_t> out(plan.world_size);
  for (std::size_t host = 0; host < plan.hosts.size(); ++host)
    for (const RankPlan& rank : plan.hosts[host].ranks) out[rank.rank] = host;
  return out;
}

}  // namespace

Supervisor::Supervisor(Parts parts, const config::JobConfig& job, const LaunchPlan& plan)
    : parts_(parts),
      job_(job),
      plan_(plan),
      relay_(hosts_of_ranks(plan)),
      changed_(parts.executor) {
  ranks_.resize(plan.world_size);
  for (const HostPlan& host : plan.hosts) {
    hosts_.push_back({hosts_.size(), &host,
                      std::make_shared<HostSession>(parts.executor, host.name, job.runner),
                      HostState::connecting, std::nullopt, 0, ""});
    for (const RankPlan& rank : host.ranks) ranks_[rank.rank].host = hosts_.size() - 1;
  }
}

void Supervisor::wake() {
  changed_.cancel();
}

struct Supervisor::Fanout {
  HostWork work;
  std::size_t next = 0, running = 0;
};

asio::awaitable<void> Supervisor::fanout_worker(std::shared_ptr<Fanout> fanout) {
  while (fanout->next < hosts_.size() && !verdict_) co_await (this->*fanout->work)(fanout->next++);
  --fanout->running;
  wake();
}

asio::awaitable<void> Supervisor::for_all_hosts(std::size_t width, HostWork work) {
  const auto fanout = std::make_shared<Fanout>(Fanout{work, 0, std::min(width, hosts_.size())});
  for (std::size_t i = fanout->running; i > 0; --i)
    asio::co_spawn(parts_.executor, fanout_worker(fanout), asio::detached);
  // After Ctrl-C nobody waits for hosts that answer slowly: nothing has been started on them.
  while (fanout->running > 0 && interrupts_ == 0) {
    changed_.expires_at(Clock::time_point::max());
    co_await changed_.async_wait(kToken);
  }
}

asio::awaitable<void> Supervisor::connect_host(std::size_t index) {
  Host& host = hosts_[index];
  const auto session = host.session;
  auto connected =
      co_await session->connect(host.plan->local() ? parts_.local : parts_.ssh, parts_.binary);
  if (connected) {
    host.state = HostState::connected;
    note_connected(host);
  } else {
    host.state = HostState::lost;
    host.error = std::move(connected).error();
  }
}

asio::awaitable<void> Supervisor::prepare_host(std::size_t index) {
  Host& host = hosts_[index];
  const auto session = host.session;
  wire::JobSpec spec =
      make_job_spec(plan_, *host.plan, job_, parts_.folder.id(), master_addr_, host.stage_folder);
  auto ready = co_await session->prepare(std::move(spec), parts_.binary.sha256());
  if (ready) {
    host.state = HostState::ready;
    note_ready(host, *ready);
  } else {
    host.state = HostState::lost;
    host.error = std::move(ready).error();
  }
}

/// One line per distinct error, hosts folded: "h[03-05]: connect: Connection refused; ...".
bool Supervisor::report_host_errors() {
  std::map<std::string, std::vector<std::string>> hosts_by_text;
  std::vector<std::string> order;
  const Host* first = nullptr;
  for (const Host& host : hosts_) {
    if (!host.error) continue;
    if (!first) first = &host;
    const std::string text =
        fmt::format("{}: {}", error_code_name(host.error->code), host.error->message);
    if (hosts_by_text[text].empty()) order.push_back(text);
    hosts_by_text[text].push_back(host.plan->name);
    parts_.folder.event("host_failed", {{"host", host.plan->name},
                                        {"stage", error_code_name(host.error->code)},
                                        {"message", host.error->message}});
  }
  if (!first || verdict_) return first != nullptr;
  std::string text;
  for (const std::string& line : order)
    text += fmt::format("{}{}: {}", text.empty() ? "" : "\n",
                        config::fold_host_names(hosts_by_text[line]), line);
  const auto failed = static_cast<std::size_t>(
      std::ranges::count_if(hosts_, [](const Host& h) { return h.error.has_value(); }));
  if (hosts_.size() > failed)
    text += fmt::format("\nno rank was started: {} of {} hosts {} ready", hosts_.size() - failed,
                        hosts_.size(), hosts_.size() - failed == 1 ? "was" : "were");
  decide(exit_code_for(first->error->code), text, {{"host", first->plan->name}});
  return true;
}

asio::awaitable<Verdict> Supervisor::run() {
  // 1. What hosts will be given; then every host: connect, authenticate, start the runner.
  const bool staged_read = co_await read_staged();
  if (staged_read)
    co_await for_all_hosts(static_cast<std::size_t>(job_.runner.ssh.fanout),
                           &Supervisor::connect_host);
  bool failed = report_host_errors();
  if (!failed && !verdict_ && stager_) {
    co_await for_all_hosts(hosts_.size(), &Supervisor::stage_host);
    note_staged();
    failed = report_host_errors();
  }
  if (!failed && !verdict_) {
    // 2. Every host gets its slice and prepares; ranks start only when all are ready.
    master_addr_ = choose_master_addr();
    co_await for_all_hosts(hosts_.size(), &Supervisor::prepare_host);
    report_host_errors();
  }
  if (!verdict_) {
    // 3. Start everything at once, then watch.
    start_all();
    while (!all_ended()) {
      changed_.expires_at(stopping_ ? stop_deadline_ : Clock::time_point::max());
      co_await changed_.async_wait(kToken);
      if (!stopping_ || Clock::now() < stop_deadline_) continue;
      for (Host& host : hosts_) {
        if (host.state != HostState::running) continue;
        give_up_on(host);
      }
    }
  }
  ended_ = true;
  // 4. The runners clean up and end; what does not answer is left to its own lease.
  for (Host& host : hosts_)
    if (host.state == HostState::finished) host.session->send(wire::Goodbye{});
  const auto goodbye = Clock::now() + std::chrono::seconds(2);
  while (Clock::now() < goodbye && std::ranges::any_of(hosts_, [](const Host& h) {
           return h.state == HostState::finished && !h.session->closed();
         })) {
    changed_.expires_at(goodbye);
    co_await changed_.async_wait(kToken);
  }
  for (Host& host : hosts_) host.session->close();

  Verdict verdict = verdict_.value_or(Verdict{});
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    const auto& status = ranks_[rank].status;
    if (verdict_ && rank != cause_ && status && !status->success()) ++verdict.ended_after;
  }
  note_end(verdict);
  co_return verdict;
}

// What follows are plain functions on purpose: g++ 12 destroys braced temporaries of a coroutine
// twice.

/// The first host's address as the others reach it; a job on this machine alone stays on the
/// loopback.
std::string Supervisor::choose_master_addr() const {
  const Host& first = hosts_.front();
  const std::string& address = first.session->address();
  if (!first.plan->local()) return address.empty() ? first.plan->name : address;
  bool alone = true;
  for (const Host& host : hosts_) {
    if (host.plan->local()) continue;
    alone = false;
    if (std::string mine = address_towards(host.session->address()); !mine.empty()) return mine;
  }
  return alone ? "127.0.0.1" : boost::asio::ip::host_name();
}

void Supervisor::note_connected(const Host& host) {
  parts_.folder.event("connected",
                      {{"host", host.plan->name}, {"address", host.session->address()}});
}

void Supervisor::note_ready(const Host& host, const wire::JobReady& ready) {
  parts_.folder.event("ready", {{"host", host.plan->name},
                                {"hostname", ready.hostname},
                                {"cpus", ready.cpus},
                                {"memory_bytes", ready.memory_bytes},
                                {"kernel", ready.kernel},
                                {"cgroup", ready.cgroup},
                                {"pmix", ready.pmix}});
}

void Supervisor::start_all() {
  for (Host& host : hosts_) {
    host.state = HostState::running;
    host.session->start(
        {[this, &host](wire::Message message) { on_message(host, std::move(message)); },
         [this, &host](Error error) { on_lost(host, std::move(error)); }});
    host.session->send(wire::Start{});
  }
  parts_.folder.event("started", {{"ranks", plan_.world_size}, {"hosts", hosts_.size()}});
}

void Supervisor::give_up_on(Host& host) {
  parts_.console.error(fmt::format(
      "{}: ranks did not end within {:.3g} s of being told to; a process there may be stuck",
      host.plan->name, static_cast<double>(grace_ms_ + parts_.stop_slack.count()) / 1000));
  parts_.folder.event("unconfirmed", {{"host", host.plan->name}});
  host.state = HostState::lost;
  host.session->close();
}

void Supervisor::note_end(const Verdict& verdict) {
  parts_.folder.event("end", {{"exit_code", verdict.exit_code}, {"text", verdict.text}});
}

bool Supervisor::all_ended() const {
  return std::ranges::none_of(hosts_,
                              [](const Host& host) { return host.state == HostState::running; });
}

void Supervisor::decide(int exit_code, std::string text, const Json& details) {
  if (verdict_) return;
  verdict_ = Verdict{exit_code, std::move(text), 0};
  Json event = {{"exit_code", exit_code}, {"text", verdict_->text}};
  event["details"] = details;
  parts_.folder.event("verdict", event);
  stop_all(static_cast<std::uint32_t>(job_.runner.grace.count()),
           verdict_->text.substr(0, verdict_->text.find('\n')));
}

void Supervisor::stop_all(std::uint32_t grace_ms, const std::string& reason) {
  stopping_ = true;
  grace_ms_ = grace_ms;
  stop_deadline_ = Clock::now() + std::chrono::milliseconds(grace_ms) + parts_.stop_slack;
  parts_.folder.event("stop", {{"grace_ms", grace_ms}, {"reason", reason}});
  for (Host& host : hosts_) {
    if (host.state == HostState::running)
      host.session->send(wire::Stop{grace_ms, reason});
    else if (host.state != HostState::finished)
      host.session->close();  // nothing was started there; the runner, if any, sees EOF
  }
  wake();
}

void Supervisor::interrupt(int signal_number) {
  if (ended_) return;  // nothing runs any more, and the end is a matter of moments
  ++interrupts_;
  const int exit_code = 128 + signal_number;
  if (interrupts_ == 1 && !verdict_) {
    parts_.console.message(fmt::format(
        "{}: stopping all ranks (TERM, then KILL after {:.3g} s); once more kills them at once",
        signal_name(signal_number), static_cast<double>(job_.runner.grace.count()) / 1000));
    decide(exit_code, fmt::format("interrupted by {}", signal_name(signal_number)),
           {{"signal", signal_number}});
    return;
  }
  parts_.console.message("killing all ranks now");
  if (!verdict_)
    decide(exit_code, fmt::format("interrupted by {}", signal_name(signal_number)),
           {{"signal", signal_number}});
  stop_all(0, "interrupted again");
}

}  // namespace sortie::launcher
