#include "launcher/supervise/survey.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>

#include "common/asio/run.h"
#include "common/asio/task_group.h"
#include "common/asio/token.h"
#include "launcher/check/requests.h"
#include "launcher/host/host_errors.h"
#include "launcher/host/host_ready.h"
#include "launcher/host/host_session.h"
#include "launcher/host/transport_router.h"

namespace sortie::launcher {
namespace asio = boost::asio;
namespace {

/// Time for a host to drop the prepared job. After that the runner's lease ends it.
constexpr std::chrono::seconds kTakenBack{5};

struct Surveyed {
  const HostPlan* plan = nullptr;
  std::shared_ptr<HostSession> session;
  bool prepared = false;
  std::optional<HostFacts> facts;
  std::optional<Error> error;
};

class Survey {
 public:
  Survey(asio::any_io_executor executor, const config::JobConfig& job, const RunnerBinary& binary,
         const LaunchPlan& plan)
      : executor_(executor),
        transport_(make_transport(executor, job.runner)),
        job_(job),
        binary_(binary),
        plan_(plan),
        run_id_("plan-" + check::random_token()) {
    for (const HostPlan& host : plan.hosts)
      hosts_.push_back(
          {&host, std::make_shared<HostSession>(executor, host.name, job.runner), false, {}, {}});
  }

  asio::awaitable<void> run() {
    co_await for_all(&Survey::connect);
    if (!failed()) co_await for_all(&Survey::prepare);
    co_await for_all(&Survey::take_back);
  }

  bool failed() const {
    return std::ranges::any_of(hosts_, [](const Surveyed& host) { return host.error.has_value(); });
  }
  const std::vector<Surveyed>& hosts() const { return hosts_; }

 private:
  using Work = asio::awaitable<void> (Survey::*)(Surveyed&);

  asio::awaitable<void> for_all(Work work) {
    TaskGroup tasks(executor_);
    for (Surveyed& host : hosts_) tasks.spawn((this->*work)(host));
    co_await tasks.wait();
  }

  asio::awaitable<void> connect(Surveyed& host) {
    Result<> connected = co_await host.session->connect(*transport_, binary_);
    if (!connected) host.error = std::move(connected).error();
  }

  wire::JobSpec spec_of(const Surveyed& host) const {
    std::vector<std::string> reached_at;
    if (host.plan == &plan_.hosts.front())
      for (const Surveyed& other : hosts_) reached_at.push_back(other.session->address());
    wire::JobSpec spec =
        make_job_spec(plan_, *host.plan, job_, run_id_, peers_of_first(reached_at));
    spec.container = {};  // a survey gets no image
    return spec;
  }

  asio::awaitable<void> prepare(Surveyed& host) {
    wire::JobSpec spec = spec_of(host);
    auto ready = co_await host.session->prepare(std::move(spec), binary_.sha256());
    host.prepared = ready.has_value();
    if (!ready)
      host.error = std::move(ready).error();
    else if (auto facts = check_ready(*host.plan, host.session->address(), *ready); !facts)
      host.error = std::move(facts).error();
    else
      host.facts = std::move(*facts);
  }

  /// Stops the job. Because it was not started, Finished follows at once.
  void ask_back(Surveyed& host, asio::steady_timer& done) {
    host.session->start({[&done](const wire::Message& message) {
                           if (std::holds_alternative<wire::Finished>(message)) done.cancel();
                         },
                         [&done](const Error&) { done.cancel(); }});
    host.session->send(wire::Stop{0, "only surveyed"});
  }

  asio::awaitable<void> take_back(Surveyed& host) {
    if (host.prepared && !host.session->closed()) {
      asio::steady_timer done(executor_, kTakenBack);
      ask_back(host, done);
      co_await done.async_wait(kToken);
      host.session->say_goodbye();
      co_await host.session->drained(0);
    }
    host.session->close();
  }

  asio::any_io_executor executor_;
  std::unique_ptr<Transport> transport_;
  const config::JobConfig& job_;
  const RunnerBinary& binary_;
  const LaunchPlan& plan_;
  const std::string run_id_;
  std::vector<Surveyed> hosts_;
};

Error error_of(const std::vector<Surveyed>& hosts) {
  std::vector<std::pair<std::string, Error>> errors;
  for (const Surveyed& host : hosts)
    if (host.error) errors.emplace_back(host.plan->name, *host.error);
  return {errors.front().second.code, fold_errors(errors)};
}

Result<> fill_in(const config::JobConfig& job, const std::vector<Surveyed>& hosts,
                 const AskTrainer& ask, LaunchPlan& plan) {
  std::vector<HostNetwork> networks;
  std::vector<std::pair<std::string, std::string>> machines;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const HostFacts& facts = *hosts[i].facts;
    networks.push_back(facts.network);
    machines.emplace_back(plan.hosts[i].name, facts.machine_id);
    plan.hosts[i].cpus = facts.cpus;
    plan.hosts[i].memory_bytes = facts.memory_bytes;
    plan.hosts[i].gpus = facts.gpus;
    for (std::size_t rank = 0; rank < facts.cpu_sets.size(); ++rank)
      plan.hosts[i].ranks[rank].cpus = facts.cpu_sets[rank];
  }
  if (std::string shared = shared_machine(machines);
      !shared.empty() && !job.runner.allow_same_machine)
    return fail(ErrorCode::config, std::move(shared));
  SORTIE_ASSIGN_OR_RETURN(const Meeting meeting, choose_meeting(networks, plan.interface));
  plan.surveyed_addr = meeting.address;
  std::vector<std::string> lacking;
  for (const Surveyed& host : hosts)
    if (host.facts->no_work_dir) lacking.push_back(host.plan->name);
  if (!lacking.empty() && !plan.container) plan.warnings.push_back(work_dir_warning(lacking, plan));
  return plan.batch ? plan_model(job, ask, plan) : Result<>();
}

}  // namespace

Result<> survey_hosts(const config::JobConfig& job, const RunnerBinary& binary,
                      const AskTrainer& ask, LaunchPlan& plan) {
  std::signal(SIGPIPE, SIG_IGN);
  asio::io_context io(1);
  Survey survey(io.get_executor(), job, binary, plan);
  run_to_end(io, survey.run());
  if (survey.failed()) return std::unexpected(error_of(survey.hosts()));
  return fill_in(job, survey.hosts(), ask, plan);
}

}  // namespace sortie::launcher
