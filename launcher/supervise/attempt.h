// Attempt: one start of all ranks of a run. Connects to the hosts, starts all ranks or none,
// watches them, and stops all of them on the first failure. All state lives on the I/O thread;
// there are no locks.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/asio/alarm.h"
#include "common/asio/task_group.h"
#include "common/base/process_status.h"
#include "common/training/event.h"
#include "launcher/console/console.h"
#include "launcher/copy/stage.h"
#include "launcher/health/health_event.h"
#include "launcher/health/health_view.h"
#include "launcher/host/host_session.h"
#include "launcher/host/reconnect.h"
#include "launcher/mpi/pmix_names.h"
#include "launcher/mpi/pmix_relay.h"
#include "launcher/plan/plan.h"
#include "launcher/run/run_folder.h"
#include "launcher/supervise/cause.h"
#include "launcher/supervise/meeting.h"
#include "launcher/supervise/rank_store.h"
#include "launcher/supervise/rank_watch.h"

namespace sortie::launcher {

namespace tunnel {
class MeshSetup;
}

/// How an attempt, or the run, ended.
struct Verdict {
  int exit_code = 0;
  std::string text;               // empty when every rank exited 0
  bool shown = false;             // already printed when it happened
  std::uint32_t ended_after = 0;  // ranks that ended as a consequence
  std::string aftermath;          // how these ranks ended, in one line; empty if there are none
  bool adopted = false;           // by another supervisor; a program's exit code may be 7, too
};

class Attempt {
 public:
  struct Parts {
    boost::asio::any_io_executor executor;
    Transport& transport;
    const RunnerBinary& binary;
    Console& console;
    RunFolder& folder;
    // Time that a runner may need after the grace period: killing, reaping, sending the last
    // output.
    std::chrono::milliseconds stop_slack{10000};
    // For how long the launcher tries to reconnect to a lost host, to kill its leftovers.
    std::chrono::milliseconds sweep_reach{5000};
    // Called once, when all ranks have started.
    std::function<void()> on_started = {};
    std::uint32_t epoch = 1;  // of this supervisor
    // Adopts the ranks that a lost supervisor has left, instead of starting the attempt.
    bool adopts = false;
    // For an adopted attempt: host -> cgroup of the job there, as recorded by the lost supervisor.
    std::map<std::string, std::string> cgroups = {};
    // The last step that the previous attempt has done; nullopt = unknown, or no previous attempt.
    std::optional<std::uint64_t> reached_before = {};
    // Logins for image registries (runner.container.credentials_file), or why they can not be read:
    // then no host is reached.
    Result<std::string> credentials = {};
    // Called for a host that was reported as slow (watchdog.straggler_ratio). May be empty.
    std::function<void(const std::string& host)> on_slow = {};
    // Handles questions of site leaders (common/training/outer.h). Empty: they are refused.
    std::function<void(std::uint32_t rank, const nlohmann::json& question)> on_outer = {};
    // Handles messages of streams between hosts (wire::ForwardOpen ...). Empty: such a message is a
    // protocol error.
    std::function<void(const std::string& host, const wire::Message& message)> on_forward = {};
    // Called when the connection to a host has ended: all of its streams are closed.
    std::function<void(const std::string& host)> on_forwards_end = {};
  };

  /// All references must outlive the attempt and the executor's work.
  Attempt(Parts parts, const config::JobConfig& job, const LaunchPlan& plan);
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  /// Runs the attempt from connecting to the end of all ranks. Sweeps of lost hosts may still be
  /// running on completion. Every wait except that for running ranks has a deadline.
  boost::asio::awaitable<Verdict> run();
  /// Waits after run() until the leftovers of lost hosts are killed or reported. Takes a few
  /// seconds.
  boost::asio::awaitable<void> swept();
  /// Whether sweeps are running, so that swept() would wait.
  bool sweeping() const { return sweeps_ > 0; }

  // Valid after run():
  /// The first cause; nullopt if every rank exited 0 or another supervisor has adopted the run.
  const std::optional<Cause>& cause() const { return cause_; }
  /// Hosts that could not be prepared, and lost hosts on which leftovers may remain.
  std::set<std::string> unusable_hosts() const;
  /// Time by which the runners of these lost hosts have killed their ranks themselves: when the
  /// lease expires, or the hold ends. In the past if there are no such hosts.
  std::chrono::steady_clock::time_point leases_end() const;
  /// Whether the order to start was sent.
  bool started() const { return !starting_; }
  /// The newest committed step, as reported by a rank or in recovery.progress_file.
  std::optional<std::uint64_t> committed_step() const { return committed_step_; }
  /// The step at which training began, as reported by the trainer.
  std::optional<std::uint64_t> begun_at_step() const { return begun_at_step_; }
  /// The last step known to be done, as reported by the trainer.
  std::optional<std::uint64_t> reached_step() const { return reached_step_; }
  bool was_superseded() const { return superseded_; }
  /// Whether coroutines of the attempt still run. It must not be destroyed then.
  bool at_work() const;

  /// Handles Ctrl-C, TERM or HUP: the first call stops the ranks with the grace period, the next
  /// one kills them at once. After a failure the first call kills them at once, too; ranks that are
  /// being stopped for a planned restart keep their grace period.
  void interrupt(int signal_number);
  /// Handles `sortie stop`, or what else `by` names in the messages: stops the ranks with the grace
  /// period, or kills them at once (`now`). The run ends as after SIGTERM.
  void stop(bool now, const std::string& by);
  /// Requests a planned restart: after the next commit all ranks are stopped with the grace period,
  /// with the cause `planned`. Ranks of sortie-train that have a save_dir are stopped after
  /// recovery.commit_wait even without a commit, because they save on SIGTERM. Returns false if the
  /// attempt is not running or already ending. `why`: one line; a later call adds its reason to the
  /// first.
  bool end_for_restart(const std::string& why);
  /// "starting", "running" or "stopping".
  const char* state() const;
  /// Progress of the ranks (RankWatch::status).
  nlohmann::ordered_json progress() const { return watch_.status(); }
  /// Sends a line to a rank (wire::RankAnswer). Dropped if its host is not connected.
  void answer(std::uint32_t rank, std::string json);
  /// Sends a message of a stream to the runner of a host. Returns false if it is not connected.
  bool send_forward(const std::string& host, const wire::Message& message);
  /// Health reports of hosts; times in seconds of the boot clock.
  const HealthView& health() const { return health_; }
  /// The host whose hardware fault explains the first cause, and the evidence; nullopt if no report
  /// explains it.
  std::optional<std::pair<std::string, HardwareEvidence>> hardware_evidence() const;

 private:
  enum class HostState { connecting, connected, ready, running, finished, lost };
  struct Host {
    std::size_t index = 0;
    const HostPlan* plan = nullptr;
    std::shared_ptr<HostSession> session;
    HostState state = HostState::connecting;
    std::optional<Error> error;
    HostNetwork network;
    std::string machine_id;                           // as the host reports it; empty = unknown
    std::chrono::steady_clock::time_point ordered{};  // when JobSpec was sent
    std::uint32_t master_port = 0;                    // port that the host has reserved
    bool no_work_dir = false;             // it lacks the folder in which `sortie run` was called
    std::uint32_t link = 1;               // number of the connection to the runner, from 1
    std::shared_ptr<Reconnect> way_back;  // set while the connection is broken
    std::optional<Error> loss;            // why the connection broke last
    std::chrono::steady_clock::time_point lost_at{};  // when that was noticed
    std::int64_t lost_boot_ms = 0;                    // the same, by the boot clock
    std::chrono::steady_clock::time_point restored_at{};
    std::uint64_t unacknowledged = 0;  // output bytes written but not yet credited
    std::string stage_folder;          // path of the staged files, if any
    std::uint64_t unacknowledged_pieces = 0;
    int errors = 0;                         // number of RunnerErrors received
    std::string cgroup;                     // cgroup of the job on the host; empty = none
    std::optional<wire::ImageReady> image;  // when ranks run in containers
    std::uint64_t memory_bytes = 0;         // of the host; 0 = unknown
    std::string image_progress;             // progress text until the image is ready
    bool clear = false;                     // lost, and swept without leftovers
    bool sweeping = false;                  // its sweep has no result yet
    bool waits_for_goodbye = false;         // finished; its runner outlasts a broken connection
    HealthIntake health;
  };
  struct HeldEvent {
    std::uint32_t rank = 0;
    bool failed = false;
    nlohmann::ordered_json fields;
  };
  struct Rank {
    std::size_t host = 0;
    std::uint32_t pid = 0;
    std::string cpus;  // CPUs that the rank is bound to, "0-3"
    std::optional<ProcessStatus> status;
    std::deque<std::string> last_lines;  // of stderr, for the report
    std::string partial;
    bool event_refused = false;
  };

  /// Runs `work(i)` for all hosts concurrently (transports limit the concurrency). Completes when
  /// all are done, or at once after an interrupt.
  using HostWork = boost::asio::awaitable<void> (Attempt::*)(std::size_t);
  boost::asio::awaitable<void> one_host(HostWork work, std::size_t index);
  boost::asio::awaitable<void> for_all_hosts(HostWork work);
  boost::asio::awaitable<void> connect_host(std::size_t index);
  boost::asio::awaitable<void> prepare_host(std::size_t index);
  boost::asio::awaitable<void> stage_on_hosts();
  boost::asio::awaitable<void> stage_host(std::size_t index);
  void show_stage_progress();
  boost::asio::awaitable<bool> read_staged();
  void note_staged();
  void blame_files(const Error& error);
  boost::asio::awaitable<void> image_host(std::size_t index);
  wire::Message image_order_message() const;
  bool take_image_message(Host& host, const wire::Message& message);
  void no_image(Host& host, Error error);
  bool agree_on_image();
  std::string image_progress_text() const;
  void warn_of_shm_size() const;
  void warn_of_work_dir();
  std::string client_of(const Host& host) const;
  boost::asio::awaitable<bool> raise_tunnel();
  boost::asio::awaitable<void> tunnel_host(std::size_t index);
  void note_tunnel(double seconds);
  boost::asio::awaitable<void> adopt_host(std::size_t index);
  /// Builds the order for the next connection to the host. Increments host.link.
  wire::Adopt adopt_order(Host& host);
  void watch(Host& host);
  void listen_to(Host& host);
  bool may_reconnect(const Host& host, const Error& error) const;
  void start_reconnect(Host& host, Error error);
  Reconnect::Parts way_to(Host& host, std::chrono::milliseconds time,
                          std::chrono::milliseconds first_pause);
  boost::asio::awaitable<void> reconnect(Host& host, std::shared_ptr<Reconnect> way);
  boost::asio::awaitable<void> reconnect_by(Host& host, std::shared_ptr<Reconnect> way);
  void resume(Host& host, std::shared_ptr<HostSession> session, unsigned attempts);
  void abandon_reconnect(Host& host);
  void tell_links_soon();
  void tell_links();
  void start_adopted();
  /// Returns whether another supervisor has adopted the run. If so, closes all connections without
  /// stopping any rank.
  bool superseded();
  wire::JobSpec job_spec_of(const Host& host) const;
  Result<> take_ready(Host& host, const wire::JobReady& ready);
  bool machines_differ();
  void agree_on_meeting();
  bool report_host_errors();
  void count_interrupt();
  boost::asio::awaitable<void> show_progress(std::shared_ptr<bool> done);
  boost::asio::awaitable<void> note_stalls(std::shared_ptr<bool> ended);
  std::string progress_text() const;

  boost::asio::awaitable<void> let_runners_go();
  void start_farewell(Host& host);
  boost::asio::awaitable<void> farewell(Host& host, std::shared_ptr<Reconnect> way);
  void note_connected(const Host& host);
  void note_ready(Host& host, const wire::JobReady& ready);
  void start_all();
  void note_started();
  void await_starts();
  void blame_unstarted();
  void give_up_on(Host& host);

  void on_message(Host& host, wire::Message message);
  void on_heartbeat(const Host& host, const wire::Heartbeat& beat);
  void note_training(const training::Event& event);
  void note_committed(std::uint64_t step);
  void await_commit();
  void end_as_planned();
  void on_output(Host& host, wire::Output output);
  void on_written(std::uint64_t owner, std::uint64_t bytes, std::uint64_t pieces);
  void on_event(const Host& host, const wire::RankEvent& event);
  void on_health(Host& host, const wire::HealthEvent& event);
  void refuse_event(const Host& host, std::uint32_t rank, const Error& why);
  void on_rank_exited(Host& host, const wire::RankExited& exited);
  void note_not_finalized(Cause cause, std::int64_t died_ms);
  void await_others(std::chrono::seconds time);
  bool has_running_ranks() const;
  void on_finished(Host& host);
  void on_lost(Host& host, Error error);
  void lose(Host& host, Error error);
  static void note_loss(Host& host);
  void give_up(Host& host, std::string why);
  bool owns(const Host& host, std::uint32_t rank) const;
  void on_notice(const Host& host, const wire::PmixNotice& notice);
  void forward(std::vector<PmixRelay::Outgoing> messages);

  /// Records a failure. The first failure stops all ranks at once. Which failure was the first
  /// cause is settled kSettleTime later (cause.h); later failures are consequences.
  void blame(Cause failure);
  bool failing() const { return !failures_.empty(); }
  /// Whether hosts are still asked for the ranks that a lost supervisor has left there.
  bool adopting() const { return parts_.adopts && starting_; }
  /// Whether the ranks are being stopped for a planned restart.
  bool ends_as_planned() const {
    return failing() && failures_.front().what == Cause::What::planned;
  }
  /// wire::Stop::peers_lost: true after a failure, false if the stop was requested or planned.
  bool peers_lost() const { return failing() && !is_wanted(failures_.front().what); }
  void settle();
  void await_settlement();
  void settle_unless_away();
  void say_what_is_awaited();
  void stop_all(std::uint32_t grace_ms, const std::string& reason);
  void on_runner_error(const Host& host, const wire::RunnerError& error);
  void note_left(const Host& host, const std::string& what);
  void note_exited(HeldEvent event);
  Cause cause_of_rank(std::uint32_t rank, Cause::What what, int code) const;
  Verdict make_verdict() const;
  /// Starts to kill the leftovers on a lost host.
  void start_sweep(Host& host);
  void sweep_unprepared(Host& host);
  void let_go(Host& host);
  boost::asio::awaitable<void> sweep(Host& host);
  void note_swept(Host& host, const Result<wire::Swept>& outcome);
  void wake();
  void end_of(Host& host, HostState state);

  Parts parts_;
  const config::JobConfig& job_;
  const LaunchPlan& plan_;
  std::vector<Host> hosts_;
  std::vector<Rank> ranks_;
  PmixRelay relay_;
  std::unique_ptr<Stager> stager_;                           // if the job stages files
  std::optional<ProgressPace> stage_pace_;                   // while files are read or sent
  std::string image_id_;                                     // the same on all hosts
  bool imaging_ = false;                                     // hosts are getting the image
  std::unique_ptr<tunnel::MeshSetup> mesh_;                  // if the job has a tunnel
  std::vector<std::string> tunnel_orders_, tunnel_reports_;  // of the current step, per host
  std::string interface_;  // interface or network for ranks; empty = any
  Meeting meeting_;
  RankWatch watch_;
  RankStore store_;
  std::uint32_t master_port_ = 0;
  PmixNameTable names_;
  HealthView health_;
  double started_at_ = 0;  // seconds of the boot clock
  std::set<std::string> notices_;
  std::vector<Cause> failures_;              // within the settle time
  std::vector<HeldEvent> held_;              // ends of ranks, until the cause is settled
  std::optional<Cause> cause_;               // settled
  std::size_t sweeps_ = 0, reconnects_ = 0;  // number running
  std::size_t health_refused_ = 0;           // number of refused events
  std::size_t refusals_ = 0;                 // number of ranks with refused events
  const std::chrono::milliseconds hold_;     // 0: ranks end with the connection
  std::vector<std::pair<std::string, Error>> lost_links_;  // not reported yet
  std::vector<std::string> restored_links_;                // not reported yet
  double longest_gap_s_ = 0;                               // of restored_links_
  bool telling_links_ = false;
  int interrupts_ = 0;
  std::uint32_t grace_ms_ = 0;
  std::uint32_t ranks_started_ = 0;
  bool starting_ = true, stopping_ = false, superseded_ = false;
  std::uint64_t listening_ = 0;  // for RunFolder::stop_listening()
  bool over_ = false;            // no rank runs
  bool ended_ = false;           // swept() is done, too
  std::optional<std::uint64_t> committed_step_, begun_at_step_, reached_step_;
  std::size_t running_ = 0;  // number of hosts in HostState::running
  std::size_t leaving_ = 0;  // hosts that have not exited since Goodbye
  TaskGroup host_work_;
  boost::asio::steady_timer progress_timer_, stall_timer_;
  // Cancelled whenever a condition that a coroutine waits for may have become true.
  boost::asio::steady_timer changed_;
  Alarm settle_timer_, links_timer_;
  Alarm commit_timer_;                  // for a planned restart
  Alarm start_timer_;                   // runner.startup_timeout for the ranks
  Alarm finalize_timer_;                // for the other ranks, after not_finalized_
  std::optional<Cause> not_finalized_;  // the first rank that left without MPI_Finalize
  std::string planned_;                 // reason for the planned restart; empty = none
  std::chrono::steady_clock::time_point stop_deadline_{}, settle_latest_{};
};

}  // namespace sortie::launcher
