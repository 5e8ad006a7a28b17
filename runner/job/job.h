// Job: the ranks of one job on this host, from prepare() to clean_up(). Reports to the launcher
// over the link. Runner (runner.h) passes on the launcher's orders. Each rank gets exactly one
// RankExited: after the last byte of its output and its last event, when none of its processes is
// alive. Finished follows once.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/cpu/binding.h"
#include "common/wire/message.h"
#include "runner/cleanup/run_folder.h"
#include "runner/container/boxes.h"
#include "runner/helper/health_helper.h"
#include "runner/job/node_facts.h"
#include "runner/job/port_lease.h"
#include "runner/mpi/finalize_check.h"
#include "runner/mpi/pmix_helper.h"
#include "runner/mpi/pmix_memory.h"
#include "runner/process/held_process.h"
#include "runner/process/process_defaults.h"
#include "runner/progress/committed_step.h"
#include "runner/progress/progress_table.h"
#include "runner/streams/event_socket.h"
#include "runner/streams/forwards.h"
#include "runner/streams/input_feed.h"
#include "runner/streams/kept_events.h"
#include "runner/streams/link.h"
#include "runner/streams/output_pump.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner {

class Job {
 public:
  /// `spec` has passed check_job(). `link` and `defaults` must outlive the job. `keeper` is used
  /// for the first process that runs outside of a container.
  Job(boost::asio::io_context& io, Link& link, wire::JobSpec spec, const ProcessDefaults& defaults,
      PreparedKeeper keeper);

  /// Sets the result of an ImageOrder that preceded the job. Call before prepare().
  void use_image(container::ReadyImage image) { image_ = std::move(image); }

  /// Kills what is left of earlier attempts, creates the folder, cgroup, sockets and pipes, and
  /// starts sortie-pmix.
  boost::asio::awaitable<Result<wire::JobReady>> prepare();

  /// Spawns all ranks. `env` overrides the job's own variables. Call once, after prepare().
  boost::asio::awaitable<void> start(wire::Environment env);

  /// Sends TERM to every rank, and KILL after `grace`. Before start(), no rank is started, and a
  /// prepared job finishes at once. With `peers_lost`, or with less grace than the job's, tells the
  /// ranks not to wait for others (training::kHurrySuffix).
  void stop(std::chrono::milliseconds grace, bool peers_lost = false);

  Result<> acknowledge_output(std::uint64_t bytes) { return pump_.acknowledge(bytes); }
  void discard_output() { pump_.discard(); }
  /// Sends the launcher of a new connection (over the same link object) what it may not know.
  /// `same`: it is the launcher of the previous connection. Sends RankStarted, errors and health
  /// events again, then the messages of PmixMemory, RankEvents from first_event() on, and the
  /// output after adopt.log_sizes.
  void resend(const wire::Adopt& adopt, bool same);
  /// Number of the first RankEvent that resend() sends: the same launcher gets those after
  /// adopt.events, another one those that were never sent.
  std::uint64_t first_event(const wire::Adopt& adopt, bool same) const {
    return same ? events_.first_from(adopt.events) : events_.first_unsent();
  }
  /// The launcher has received the first `count` RankEvents.
  void acknowledge_events(std::uint64_t count) { events_.acknowledge(count); }
  /// Error: the job has no stdin, its ranks do not exist yet, or the data exceeds the input window.
  Result<> take_input(const wire::Input& input);
  /// Passes an answer to a rank of this host; dropped if nothing listens there. Error: not a rank
  /// of this host, or not a line with a JSON object.
  Result<> take_answer(const wire::RankAnswer& answer);
  /// Handles a message of a stream between hosts. Error: the job has no streams, or the message is
  /// invalid.
  Result<> take_forward(const wire::Message& message);
  /// Drops all streams: the connection to the launcher, which relayed them, is lost.
  void drop_forwards() {
    if (forwards_) forwards_->drop_all();
  }
  /// Reports an error to the launcher, also to a later one. `rank`: -1 for the host.
  void send_error(ErrorCode code, std::string message, std::int32_t rank = -1);
  /// Passes a message to sortie-pmix. Error: the job has none.
  Result<> to_pmix(const wire::Message& message);
  /// Continues keepers that were stopped (SIGSTOP): a stopped keeper can not end its rank.
  void wake_keepers() const;
  /// Keeps cleaners from removing the run folder because of its age. Cheap enough for every
  /// heartbeat.
  void refresh_folder();
  /// Records in the run folder that no launcher is connected; `until_ms`: Unix time at which the
  /// hold ends.
  void mark_held(std::uint64_t until_ms) const;
  void unmark_held() const { folder_.unmark_held(); }
  /// Fills in the heartbeat's facts about the ranks and the last committed step. `gap`: time since
  /// the last call during which this process did not run.
  void fill(wire::Heartbeat& beat, std::chrono::steady_clock::duration gap);
  /// Sends a StackDump for each of the ranks in `order`.
  boost::asio::awaitable<void> dump_stacks(wire::DumpStacks order);
  /// Registers a child that is no keeper and exits by itself, so that it is not treated as an
  /// orphan of a rank.
  void keep_child(pid_t pid) { keepers_.insert(pid); }
  /// Reaps dead children. Call on SIGCHLD.
  void reap();

  const wire::JobSpec& spec() const { return spec_; }
  const std::string& folder() const { return folder_.path(); }
  bool prepared() const { return prepared_; }
  bool started() const { return started_; }
  bool stopped() const { return stopped_; }
  bool finished() const { return finished_; }
  /// Ends sortie-pmix and sortie-health and sends Finished. Runs by itself after the last rank.
  boost::asio::awaitable<void> finish();
  /// Waits until finish() has run. Returns false after `limit` (an unkillable process).
  boost::asio::awaitable<bool> wait_finished(std::chrono::steady_clock::duration limit);
  /// Removes folder and cgroup; ends sortie-pmix if it still runs.
  boost::asio::awaitable<void> clean_up();

 private:
  struct Rank {
    Rank(boost::asio::io_context& io, const wire::RankSpec& rank_spec)
        : spec(&rank_spec), process(io) {}
    const wire::RankSpec* spec;
    HeldProcess process;
    std::unique_ptr<EventSocket> events;
    std::string socket_path, cgroup;
    std::unique_ptr<InputFeed> input;
    Fd in, out, err;  // the rank's ends; closed once its keeper holds them
    std::string program, searched_path;
    pid_t pid = 0;
    std::optional<oom::Group> group;  // memory group of its container
    wire::RankExited exited;
    bool has_status = false;
    bool keeper_lost = false;
    bool gone = false;
    bool drained = false;  // all of its output has been handed out
  };

  boost::asio::awaitable<Result<>> fence();
  std::string forward_path() const { return folder_.path() + "/forward.sock"; }
  boost::asio::awaitable<Result<>> prepare_boxes();
  boost::asio::awaitable<void> remove_boxes();
  bool in_containers() const { return !spec_.container.engine.empty(); }
  Result<> start_process(std::size_t slot, HeldSpec& held);
  void look_for_oom(Rank& rank) const;
  boost::asio::awaitable<void> tick_groups();
  void settle_lost_keeper(std::size_t slot);
  Result<> prepare_folder();
  void prepare_cgroup();
  Result<> prepare_rank(Rank& rank);
  boost::asio::awaitable<Result<>> prepare_pmix();
  Result<> prepare_port();
  void prepare_binding();
  void share_memory_in_a_folder();
  /// Error: the program needs MPI, and this host has no PMIx for it.
  Result<> check_without_pmix(const std::string& why) const;
  std::vector<std::string> environment_of(const Rank& rank) const;
  wire::JobReady ready() const;
  void on_pmix_lost(std::string why);
  void start_rank(std::size_t slot);
  static void hurry(const Rank& rank);
  void on_report(std::size_t slot, const KeeperReport& report);
  void set_status(Rank& rank, int wait_status);
  void report_spawn_failure(std::size_t slot, const KeeperReport& report);
  void on_event(const Rank& rank, std::string line);
  bool take_progress(const Rank& rank, const std::string& line);
  void start_health();
  void on_health(const std::string& line);
  boost::asio::awaitable<void> end_health();
  void send_error(std::string_view code, std::string message, std::int32_t rank = -1);
  void send_error(ErrorCode code, std::string message, const Rank& rank) {
    send_error(code, std::move(message), static_cast<std::int32_t>(rank.spec->rank));
  }
  static void set_time_of_death(wire::RankExited& exited);
  void resend_ends();
  void on_unkillable(std::size_t slot, const KeeperReport& report);
  void rank_gone(std::size_t slot);
  void rank_drained(std::size_t slot);
  void start_sweep();
  boost::asio::awaitable<void> sweep_orphans();
  bool lost_keepers_reaped() const;

  boost::asio::io_context& io_;
  Link& link_;
  const wire::JobSpec spec_;
  const ProcessDefaults& defaults_;
  PreparedKeeper keeper_;
  const NodeFacts facts_;
  RunFolder folder_;
  std::string config_path_, cgroup_, cgroup_note_, pmix_note_;
  std::vector<std::string> pmix_env_, base_env_;
  wire::Environment start_env_;
  PortLease port_;
  cpu::Topology topology_;
  cpu::Binding binding_;
  std::unique_ptr<PmixHelper> pmix_;
  std::unique_ptr<HealthHelper> health_;
  /// The last health events and when they came (boot clock), for a launcher that reconnects.
  std::deque<std::pair<std::int64_t, wire::HealthEvent>> health_events_;
  std::uint64_t health_number_ = 0;  // number of the last one
  std::optional<container::ReadyImage> image_;
  std::unique_ptr<container::Boxes> boxes_;
  std::unique_ptr<Forwards> forwards_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  OutputPump pump_;
  std::set<pid_t> keepers_;  // unreaped children that are not orphans: keepers and helpers
  std::map<pid_t, int> orphan_statuses_;  // wait statuses of other children, by pid
  std::size_t exited_ = 0;
  std::uint64_t dropped_events_ = 0;
  std::vector<wire::RunnerError> errors_;  // all reported ones, if ranks may be held
  KeptEvents events_;                      // if ranks may be held
  std::optional<std::chrono::steady_clock::time_point> folder_touched_;
  PmixMemory pmix_memory_;
  FinalizeCheck finalize_check_;
  ProgressTable progress_;
  CommittedStep committed_;
  bool progress_refused_ = false;                        // a malformed progress line was logged
  std::set<boost::asio::steady_timer*> finish_waiters_;  // of wait_finished()
  boost::asio::steady_timer group_timer_;                // of tick_groups()
  bool prepared_ = false;
  bool pmix_up_ = false;
  bool started_ = false;
  bool stopped_ = false;
  bool finished_ = false;
  bool sweeping_ = false;
  bool resending_ = false;  // RankExited must follow the output that is sent again
};

}  // namespace sortie::runner
