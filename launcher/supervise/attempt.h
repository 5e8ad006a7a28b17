// Attempt: one start of all ranks of a run. Connects, starts all ranks or none, watches,
// and on the first failure ends everything. All state lives on the I/O thread; there are no locks.
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
  bool shown = false;             // the console has it already, from when it happened
  std::uint32_t ended_after = 0;  // ranks that ended as a consequence
  std::string aftermath;          // how they did, in one line; empty when there are none
};

class Attempt {
 public:
  struct Parts {
    boost::asio::any_io_executor executor;
    Transport& transport;
    const RunnerBinary& binary;
    Console& console;
    RunFolder& folder;
    // What a runner may need beyond the grace: killing, reaping, delivering the last output.
    std::chrono::milliseconds stop_slack{10000};
    // How long a host that was lost while ranks ran is tried again, to end what it may have left.
    std::chrono::milliseconds sweep_reach{5000};
    // Called once, when every rank has been started.
    std::function<void()> on_started = {};
    std::uint32_t epoch = 1;  // of this supervisor
    // Takes over what a lost supervisor has left of this attempt, instead of starting it.
    bool adopts = false;
    // Then: of the job on each host, as that one was told it.
    std::map<std::string, std::string> cgroups = {};
    // The last step that the attempt before has done; none = not known, or there was none.
    std::optional<std::uint64_t> reached_before = {};
    // A host was named as slow (watchdog.straggler_ratio). May be empty.
    std::function<void(const std::string& host)> on_slow = {};
    // Takes what leaders of sites ask (common/training/outer.h). Empty: it is refused.
    std::function<void(std::uint32_t rank, const nlohmann::json& question)> on_outer = {};
    // Takes messages of streams between hosts (wire::ForwardOpen ...). Empty: hosts that send them
    // break the protocol.
    std::function<void(const std::string& host, const wire::Message& message)> on_forward = {};
    // That host takes and sends none any more, over this connection.
    std::function<void(const std::string& host)> on_forwards_end = {};
  };

  /// All references must outlive the attempt, and the executor's work.
  Attempt(Parts parts, const config::JobConfig& job, const LaunchPlan& plan);
  ~Attempt();
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;

  /// From connecting to the end of all ranks; hosts that were lost may still be swept then.
  /// Bounded: every wait in it has a deadline, but for running ranks.
  boost::asio::awaitable<Verdict> run();
  /// After run(): waits until what lost hosts may have left is ended, or named. A few seconds.
  boost::asio::awaitable<void> swept();
  /// Hosts that swept() waits for.
  bool sweeping() const { return sweeps_ > 0; }

  // After run().
  /// The first cause; none where every rank exited 0, or another supervisor has the run.
  const std::optional<Cause>& cause() const { return cause_; }
  /// Hosts that could not be prepared, and those that were lost and are not known to be clear.
  std::set<std::string> unusable_hosts() const;
  /// When ranks that such hosts may still have are ended by their own runners: by the lease, or the
  /// hold. In the past where there is none.
  std::chrono::steady_clock::time_point leases_end() const;
  /// Whether the order to start was sent.
  bool started() const { return !starting_; }
  /// The newest step that a rank, or the file of recovery.progress_file, says is committed.
  std::optional<std::uint64_t> committed_step() const { return committed_step_; }
  /// Where training began, as its trainer says.
  std::optional<std::uint64_t> begun_at_step() const { return begun_at_step_; }
  /// The last step that is known to be done, as its trainer says.
  std::optional<std::uint64_t> reached_step() const { return reached_step_; }
  bool was_superseded() const { return superseded_; }
  /// Whether something of it still runs: then it must not be destroyed.
  bool at_work() const;

  /// Ctrl-C, TERM or HUP: the first call stops with the grace, the next one at once.
  void interrupt(int signal_number);
  /// `sortie stop`: stops with the grace, or at once; the run then ends as after TERM.
  void stop(bool now);
  /// After the next commit, or within recovery.commit_wait where ranks of sortie-train can be asked
  /// to save, all ranks are asked to end, with the grace; the cause is then `planned`. False where
  /// it is not running, or is ending already. `why`: one line; a second one is added to the first.
  bool end_for_restart(const std::string& why);
  /// "starting", "running" or "stopping".
  const char* state() const;
  /// Where the ranks are in their training (RankWatch::status).
  nlohmann::ordered_json progress() const { return watch_.status(); }
  /// A line for a rank (wire::RankAnswer); dropped where its host is not there at present.
  void answer(std::uint32_t rank, std::string json);
  /// A message of a stream for the runner of a host; false where that is not there at present.
  bool send_forward(const std::string& host, const wire::Message& message);
  /// What hosts have reported; times in seconds of the boot clock.
  const HealthView& health() const { return health_; }
  /// The host whose hardware explains the first cause, and how; none without such a report.
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
    std::string machine_id;                           // as it reports it; empty = unknown
    std::chrono::steady_clock::time_point ordered{};  // when it was given its job
    std::uint32_t master_port = 0;                    // that it holds
    std::uint32_t link = 1;                           // connections to the runner of this job
    std::shared_ptr<Reconnect> way_back;              // while its connection is broken
    std::optional<Error> loss;                        // why it is, or was
    std::chrono::steady_clock::time_point lost_at{};  // when it was noticed
    std::chrono::steady_clock::time_point restored_at{};
    std::uint64_t unacknowledged = 0;  // output bytes written but not yet credited
    std::string stage_folder;          // where the staged files are, when there are any
    std::uint64_t unacknowledged_pieces = 0;
    int errors = 0;                         // RunnerErrors that it sent
    std::string cgroup;                     // of the job there, as the runner has it; empty = none
    std::optional<wire::ImageReady> image;  // when ranks run in containers
    std::string image_progress;             // what it is at, until then
    bool clear = false;                     // it was lost, and swept
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
    std::string cpus;  // that it is bound to, "0-3"
    std::optional<ProcessStatus> status;
    std::deque<std::string> last_lines;  // of stderr, for the report
    std::string partial;
    bool event_refused = false;
  };

  /// Runs `work(i)` for all hosts at the same time (transports bound what that costs); returns when
  /// all are done, or at once after an interrupt.
  using HostWork = boost::asio::awaitable<void> (Attempt::*)(std::size_t);
  boost::asio::awaitable<void> one_host(HostWork work, std::size_t index);
  boost::asio::awaitable<void> for_all_hosts(HostWork work);
  boost::asio::awaitable<void> connect_host(std::size_t index);
  boost::asio::awaitable<void> prepare_host(std::size_t index);
  boost::asio::awaitable<void> stage_host(std::size_t index);
  boost::asio::awaitable<bool> read_staged();
  void note_staged();
  void blame_files(const Error& error);
  bool read_credentials_file();
  boost::asio::awaitable<void> image_host(std::size_t index);
  wire::Message image_order_message() const;
  bool take_image_message(Host& host, const wire::Message& message);
  void no_image(Host& host, Error error);
  bool agree_on_image();
  std::string image_progress_text() const;
  std::string client_of(const Host& host) const;
  boost::asio::awaitable<bool> raise_tunnel();
  boost::asio::awaitable<void> tunnel_host(std::size_t index);
  void note_tunnel(double seconds);
  boost::asio::awaitable<void> adopt_host(std::size_t index);
  /// For the next connection to the host.
  wire::Adopt adopt_order(Host& host);
  void watch(Host& host);
  void listen_to(Host& host);
  bool may_reconnect(const Host& host, const Error& error) const;
  void start_reconnect(Host& host, Error error);
  boost::asio::awaitable<void> reconnect(Host& host, std::shared_ptr<Reconnect> way);
  boost::asio::awaitable<void> reconnect_by(Host& host, std::shared_ptr<Reconnect> way);
  void resume(Host& host, std::shared_ptr<HostSession> session, unsigned attempts);
  void abandon_reconnect(Host& host);
  void tell_links_soon();
  void tell_links();
  void start_adopted();
  /// Another supervisor has adopted the run: true, and everything is let go of, untouched.
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
  void on_finished(Host& host);
  void on_lost(Host& host, Error error);
  void lose(Host& host, Error error);
  void give_up(Host& host, std::string why);
  bool owns(const Host& host, std::uint32_t rank) const;
  void on_notice(const Host& host, const wire::PmixNotice& notice);
  void forward(std::vector<PmixRelay::Outgoing> messages);

  /// A failure: the first one stops everything at once. Which one was the cause is settled a moment
  /// later (cause.h); what comes after that is a consequence.
  void blame(Cause failure);
  bool failing() const { return !failures_.empty(); }
  /// Not where the stop was asked for, or where nothing has been started yet.
  bool peers_lost() const { return failing() && !is_wanted(failures_.front().what); }
  void settle();
  void await_settlement();
  void say_what_is_awaited();
  void stop_all(std::uint32_t grace_ms, const std::string& reason);
  void on_runner_error(const Host& host, const wire::RunnerError& error);
  void note_exited(HeldEvent event);
  Cause cause_of_rank(std::uint32_t rank, Cause::What what, int code) const;
  Verdict make_verdict() const;
  /// Ends what a lost host may have left.
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
  std::unique_ptr<Stager> stager_;           // when the job stages files
  std::string credentials_;                  // of registries
  std::string image_id_;                     // that all hosts have
  bool imaging_ = false;                     // hosts are making sure that they have it
  std::unique_ptr<tunnel::MeshSetup> mesh_;  // when hosts have a tunnel
  std::vector<std::string> tunnel_orders_, tunnel_reports_;  // of its present step, per host
  std::string interface_;  // of the network that ranks shall use; empty = any
  Meeting meeting_;
  RankWatch watch_;
  RankStore store_;
  std::uint32_t master_port_ = 0;
  PmixNameTable names_;
  HealthView health_;
  double started_at_ = 0;  // seconds of the boot clock
  std::set<std::string> notices_;
  std::vector<Cause> failures_;              // within the settle time
  std::vector<HeldEvent> held_;              // ends of ranks, until it is known which was the cause
  std::optional<Cause> cause_;               // settled
  std::size_t sweeps_ = 0, reconnects_ = 0;  // under way
  std::size_t health_refused_ = 0;           // events that were left out
  std::size_t refusals_ = 0;                 // ranks whose events were left out
  const std::chrono::milliseconds hold_;     // 0: ranks end with their connection
  std::vector<std::pair<std::string, Error>> lost_links_;  // not reported yet
  std::vector<std::string> restored_links_;                // likewise
  double longest_gap_s_ = 0;                               // of those
  bool telling_links_ = false;
  int interrupts_ = 0;
  std::uint32_t grace_ms_ = 0;
  std::uint32_t ranks_started_ = 0;
  bool starting_ = true, stopping_ = false, superseded_ = false;
  std::uint64_t listening_ = 0;  // to the folder
  bool over_ = false;            // no rank runs any more
  bool ended_ = false;           // nothing is done any more
  std::optional<std::uint64_t> committed_step_, begun_at_step_, reached_step_;
  std::size_t running_ = 0;  // hosts in that state
  std::size_t leaving_ = 0;  // hosts that were told Goodbye and are still there
  TaskGroup host_work_;
  boost::asio::steady_timer progress_timer_, stall_timer_;
  // Cancelled whenever a waiting condition may have become true.
  boost::asio::steady_timer changed_;
  boost::asio::steady_timer settle_timer_, links_timer_;
  boost::asio::steady_timer commit_timer_;  // of a planned restart
  boost::asio::steady_timer start_timer_;   // runner.startup_timeout of the ranks
  std::string planned_;                     // why there will be one; empty = there will be none
  std::chrono::steady_clock::time_point stop_deadline_{};
};

}  // namespace sortie::launcher
