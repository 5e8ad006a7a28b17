// RunLoop: a run from its first attempt to its end. After each attempt it calls decide() and
// executes the decision: pauses and starts all ranks again on the chosen hosts, or ends the run.
// All state lives on the I/O thread.
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

#include "common/asio/alarm.h"
#include "common/asio/file_calls.h"
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
  /// Plans `job` on `hosts`. Connects to no host.
  using Replan = std::function<Result<LaunchPlan>(const config::JobConfig& job,
                                                  const std::vector<config::HostSlots>& hosts)>;
  /// What is known about hosts from all runs of this user.
  struct KnownHosts {
    std::set<std::string> cordoned;
    bool breaker_open = false;
  };
  struct Parts {
    Attempt::Parts attempt;  // for each attempt; `adopts` and `cgroups` for the first one only
    /// Calls known_hosts, cordon and note_blames on its thread, and reads logins there: they may
    /// block.
    FileCalls& file_calls;
    Replan replan;                               // empty: restarts use the same hosts only
    std::vector<config::HostSlots> hosts = {};   // hosts of `plan`
    std::vector<config::HostSlots> spares = {};  // recovery.spares
    /// Hosts of the job as configured. They may rejoin a run that continued with fewer hosts. Empty
    /// = `hosts`.
    std::vector<config::HostSlots> places = {};
    /// Number of ranks that the job was configured for; 0 = as many as in `plan`.
    std::uint32_t configured_ranks = 0;
    /// Called before each decision. An error is printed; then the hosts known before count as
    /// cordoned, and none is cordoned. Empty function = nothing is known.
    std::function<Result<KnownHosts>()> known_hosts = {};
    /// Cordons `hosts` for all runs of this user. `all`: all hosts and spares of this run. Empty
    /// function = hosts are never cordoned.
    std::function<Result<CordonOutcome>(const std::vector<CordonOrder>& hosts,
                                        const std::vector<std::string>& all)>
        cordon = {};
    /// Checks whether a host is fit to take part in the job with this plan. Completes within
    /// seconds, and at once when it is given up. Empty function: hosts join without a check, and
    /// hosts that the run had to leave never rejoin.
    using Fitness = std::function<boost::asio::awaitable<Result<>>(
        const config::JobConfig& job, const LaunchPlan& plan, config::HostSlots host,
        std::shared_ptr<GiveUp> give_up)>;
    Fitness fitness = {};
    /// Records the blames of this run for all runs of this user (Blame::run is left empty). Returns
    /// the hosts that enough runs blame, with the reason. Empty function = blames are not recorded.
    std::function<Result<std::map<std::string, std::string>>(std::vector<Blame> blames)>
        note_blames = {};
    /// For an adopted run: the attempts that have ended, from the journal.
    std::vector<AttemptEnd> history = {};
    /// For an adopted attempt: what earlier supervisors recorded about it.
    std::optional<AttemptEnd> before = {};
    /// The run was adopted between two attempts: run() begins with the decision about the last
    /// attempt in `history`.
    bool between_attempts = false;
    /// Called when an attempt begins or is adopted, and when all its ranks have ended. May be
    /// empty.
    std::function<void(std::uint32_t attempt)> on_attempt = {};
    std::function<void()> on_attempt_end = {};
    /// Number of sites that share the global batch size of the job; this run is one of them.
    std::int64_t sites = 1;
  };

  /// All references must outlive the loop and the executor's work. `plan` is the plan of the first
  /// attempt of this loop and contains the number of that attempt.
  RunLoop(Parts parts, const config::JobConfig& job, LaunchPlan plan);
  ~RunLoop() override;
  RunLoop(const RunLoop&) = delete;
  RunLoop& operator=(const RunLoop&) = delete;

  /// Runs all attempts. Returns the verdict of the last one.
  boost::asio::awaitable<Verdict> run() override;

  void interrupt(int signal_number) override;
  void stop(bool now) override;
  /// The same by another order than `sortie stop`, which `by` names.
  void stop(bool now, const std::string& by);
  const char* state() const override;
  std::uint32_t attempt() const override { return plan_.attempt; }
  bool has_host(const std::string& name) const override;
  nlohmann::ordered_json progress() const override;
  /// The plan of the current attempt; between two attempts that of the next one, once it is made.
  const LaunchPlan& plan() const { return plan_; }

  /// Sends a message of a stream between hosts (Attempt::send_forward). Returns false between
  /// attempts.
  bool send_forward(const std::string& host, const wire::Message& message);
  /// Sends a line to a rank of the current attempt (wire::RankAnswer). Dropped between attempts.
  void answer(std::uint32_t rank, std::string json);

 private:
  /// One attempt, with the job and plan that it refers to.
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
  HostPool pool() const;
  boost::asio::awaitable<void> read_known_hosts(std::shared_ptr<GiveUp> give_up);
  bool may_run_on(const std::vector<std::string>& hosts) const;
  bool needs_sweeps(const Started& started, const Decision& decision) const;
  boost::asio::awaitable<bool> go_on(Verdict& verdict);
  Verdict stopped_before_next() const;
  boost::asio::awaitable<std::optional<Decision>> choose(Verdict& verdict);
  boost::asio::awaitable<bool> joiners_are_fit(const Decision& decision);
  boost::asio::awaitable<Result<>> check_fitness(config::HostSlots host);
  boost::asio::awaitable<void> look_for_fit_hosts();
  boost::asio::awaitable<void> swap_slow_host(std::string host);
  boost::asio::awaitable<void> end_of_looking();
  std::vector<config::HostSlots> hosts_to_check(HostPool pool) const;
  void take_in_if_larger();
  boost::asio::awaitable<void> note_blames();
  boost::asio::awaitable<void> cordon_chronic();
  std::vector<config::HostSlots> with_places() const;
  CordonOrder cordon_order(const std::string& host) const;
  boost::asio::awaitable<void> cordon(std::vector<std::string> hosts);
  boost::asio::awaitable<bool> pause(std::chrono::steady_clock::time_point until,
                                     const Attempt* ended, Verdict& verdict);
  Result<> plan_next(const Decision& decision);
  std::optional<config::TopologyConfig> topology_on(std::int64_t ranks) const;
  void conclude(const Decision& decision, Verdict& verdict);
  void say_restart(const Decision& decision, const Verdict& verdict);
  void order_stop(bool first, const std::function<void()>& act);
  void after_adoption(std::function<void()> act);
  bool adopting() const;
  bool recovers() const;
  void drop_finished();
  boost::asio::awaitable<void> hold_memory();
  boost::asio::awaitable<void> read_logins();

  Parts parts_;
  const config::JobConfig& first_job_;
  const std::uint32_t configured_ranks_;
  config::JobConfig job_;  // of the current or next attempt
  LaunchPlan plan_;
  std::vector<config::HostSlots> hosts_;
  std::vector<AttemptEnd> history_;
  KnownHosts known_;             // when it was last read
  std::set<std::string> unfit_;  // spares that failed a check
  std::set<std::string> fit_;    // hosts that the run left and that have passed a check since
  std::map<std::string, std::string> chronic_;   // hosts that several runs blame -> reason
  std::set<std::string> cordoned_here_;          // by this run
  std::map<std::string, std::size_t> forgiven_;  // HostPool::forgiven
  std::set<std::string> leaving_;                // slow hosts that leave after the running attempt
  bool growing_ = false;  // the attempt was asked to end so that hosts can join
  std::list<std::unique_ptr<Started>> started_;  // attempts at work; the last is current
  bool between_ = false;                         // no attempt is running
  bool plan_is_partial_ = false;  // of an adopted run: enough to continue, not to start
  bool ended_ = false;
  std::optional<StopOrder> stop_order_;
  boost::asio::steady_timer pause_, fit_timer_;
  Alarm adoption_look_;
  TaskGroup looking_;                      // checks of hosts during an attempt; end with it
  std::shared_ptr<GiveUp> give_up_;        // for the running checks of hosts
  std::unique_ptr<MemoryHolders> memory_;  // if the job keeps checkpoints in memory
};

}  // namespace sortie::launcher
