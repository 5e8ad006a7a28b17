// RunLoop: a run from its first attempt to its end. After each attempt it asks decide() what to do,
// and does it: waits, starts all ranks again on the hosts that were chosen, or ends the run. All
// state lives on the I/O thread.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/asio/give_up.h"
#include "common/asio/task_group.h"
#include "common/config/hostlist.h"
#include "common/config/schema.h"
#include "launcher/nodes/node_store.h"
#include "launcher/plan/plan.h"
#include "launcher/recovery/decide.h"
#include "launcher/run/memory_holders.h"
#include "launcher/run/supervised_run.h"
#include "launcher/supervise/attempt.h"

namespace sortie::launcher {

class RunLoop : public SupervisedRun {
 public:
  /// The plan of `job` on other hosts than the first ones. Touches no host.
  using Replan = std::function<Result<LaunchPlan>(const config::JobConfig& job,
                                                  const std::vector<config::HostSlots>& hosts)>;
  /// What other runs of this user know of hosts.
  struct KnownHosts {
    std::set<std::string> cordoned;
    bool breaker_open = false;
  };
  /// Why a host is cordoned, and how many failures spoke against it.
  using ReasonOf = std::function<std::pair<std::string, std::uint32_t>(const std::string& host)>;
  struct Parts {
    Attempt::Parts attempt;  // of each attempt; `adopts` and `cgroups`: of the first one alone
    Replan replan;           // empty: restarts are on the same hosts only
    std::vector<config::HostSlots> hosts = {};   // of `plan`
    std::vector<config::HostSlots> spares = {};  // of recovery.spares
    /// Of the job as configured, which a run with fewer hosts takes in again; empty = `hosts`.
    std::vector<config::HostSlots> places = {};
    /// Ranks that the job was configured for; 0 = those of `plan`.
    std::uint32_t configured_ranks = 0;
    /// Asked before each decision; an error is told and counts as "nothing is known". Empty = none.
    std::function<Result<KnownHosts>()> known_hosts = {};
    /// Cordons hosts for all runs of this user; `all`: those that this run knows. Empty = nowhere.
    std::function<Result<CordonOutcome>(const std::vector<std::string>& hosts,
                                        const ReasonOf& reason_of,
                                        const std::vector<std::string>& all)>
        cordon = {};
    /// Whether a host is fit to take part in the job with this plan: ends within seconds, and at
    /// once when it is given up. Empty: hosts are taken as they are, and none that the run had to
    /// leave is taken again.
    using Fitness = std::function<boost::asio::awaitable<Result<>>(
        const config::JobConfig& job, const LaunchPlan& plan, config::HostSlots host,
        std::shared_ptr<GiveUp> give_up)>;
    Fitness fitness = {};
    /// Notes for all runs of this user what failures of this one say against hosts (Blame::run is
    /// left empty). Returns those that enough runs blame, with the reason. Empty = nowhere.
    std::function<Result<std::map<std::string, std::string>>(std::vector<Blame> blames)>
        note_blames = {};
    /// Of a run that is adopted: the attempts that have ended, as the journal has them.
    std::vector<AttemptEnd> history = {};
    /// What the supervisors before have learnt of the attempt that is adopted.
    std::optional<AttemptEnd> before = {};
    /// It was between two attempts: the last one in `history` is decided about first.
    bool between_attempts = false;
    /// Called when an attempt begins, or is adopted, and when all its ranks have ended. May be
    /// empty.
    std::function<void(std::uint32_t attempt)> on_attempt = {};
    std::function<void()> on_attempt_end = {};
    /// How many sites share the global batch size of the job; this run is one of them.
    std::int64_t sites = 1;
  };

  /// All references must outlive the loop and the executor's work. `plan` is that of the first
  /// attempt here; its number is in it.
  RunLoop(Parts parts, const config::JobConfig& job, LaunchPlan plan);
  ~RunLoop() override;
  RunLoop(const RunLoop&) = delete;
  RunLoop& operator=(const RunLoop&) = delete;

  /// The whole run; the verdict is that of its last attempt.
  boost::asio::awaitable<Verdict> run() override;

  void interrupt(int signal_number) override;
  void stop(bool now) override;
  const char* state() const override;
  std::uint32_t attempt() const override { return plan_.attempt; }
  bool has_host(const std::string& name) const override;
  nlohmann::ordered_json progress() const override;

  /// A message of a stream between hosts (Attempt::send_forward); false between attempts.
  bool send_forward(const std::string& host, const wire::Message& message);
  /// A line for a rank of the current attempt (wire::RankAnswer); dropped between attempts.
  void answer(std::uint32_t rank, std::string json);

 private:
  /// One attempt with what it refers to.
  struct Started {
    config::JobConfig job;
    LaunchPlan plan;
    double begun = 0;  // seconds since 1970
    bool adopted = false;
    std::unique_ptr<Attempt> attempt;
  };
  struct StopOrder {
    int exit_code = 0;
    std::string text;
  };

  boost::asio::awaitable<Verdict> one_attempt(bool adopts);
  boost::asio::awaitable<void> learn_of_end(Started& started, const Verdict& verdict);
  AttemptEnd end_of_attempt(const Started& started, const Verdict& verdict) const;
  Decision decide_now();
  HostPool pool();
  bool may_run_on(const std::vector<std::string>& hosts) const;
  bool needs_sweeps(const Started& started, const Decision& decision) const;
  boost::asio::awaitable<bool> go_on(Verdict& verdict);
  boost::asio::awaitable<std::optional<Decision>> choose(Verdict& verdict);
  boost::asio::awaitable<bool> joiners_are_fit(const Decision& decision);
  boost::asio::awaitable<Result<>> check_fitness(config::HostSlots host);
  boost::asio::awaitable<void> look_for_fit_hosts();
  boost::asio::awaitable<void> swap_slow_host(std::string host);
  boost::asio::awaitable<void> end_of_looking();
  std::vector<config::HostSlots> hosts_to_check(HostPool pool) const;
  void take_in_if_larger();
  void note_blames();
  void cordon_chronic();
  std::vector<config::HostSlots> with_places() const;
  void cordon(const std::vector<std::string>& hosts);
  boost::asio::awaitable<bool> pause(std::chrono::steady_clock::time_point until, Verdict& verdict);
  Result<> plan_next(const Decision& decision);
  std::optional<config::TopologyConfig> topology_on(std::int64_t ranks) const;
  void conclude(const Decision& decision, Verdict& verdict);
  void say_restart(const Decision& decision, const Verdict& verdict);
  void after_adoption(std::function<void()> act);
  bool recovers() const;
  void drop_finished();
  boost::asio::awaitable<void> hold_memory();

  Parts parts_;
  const config::JobConfig& first_job_;
  const std::uint32_t configured_ranks_;
  config::JobConfig job_;  // of the next attempt, or the current one
  LaunchPlan plan_;
  std::vector<config::HostSlots> hosts_;
  std::vector<AttemptEnd> history_;
  std::set<std::string> unfit_;                  // spares that a check has refused
  std::set<std::string> fit_;                    // hosts that were left, and passed a check since
  std::map<std::string, std::string> chronic_;   // hosts that several runs blame, and why
  std::set<std::string> cordoned_here_;          // by this run
  std::map<std::string, std::size_t> forgiven_;  // HostPool::forgiven
  std::set<std::string> leaving_;                // slow hosts of the attempt that runs
  bool growing_ = false;                         // it was asked to end, to take hosts in
  std::list<std::unique_ptr<Started>> started_;  // that still do something; the last is current
  bool between_ = false;                         // no attempt is under way
  bool plan_is_partial_ = false;  // as adopters have it: enough to go on, not to start
  bool ended_ = false;
  std::optional<StopOrder> stop_order_;
  boost::asio::steady_timer pause_, fit_timer_;
  TaskGroup looking_;                      // for hosts, beside the attempt that runs; ends with it
  std::shared_ptr<GiveUp> give_up_;        // of the checks of hosts that are under way
  std::unique_ptr<MemoryHolders> memory_;  // where the job keeps checkpoints in memory
};

}  // namespace sortie::launcher
