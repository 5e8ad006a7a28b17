// The ranks of one job on this host, from prepared to accounted for. Sends what happens to the
// launcher over the link; takes orders from runner.h. Every rank gets exactly one RankExited, after
// the last byte of its output and its last event, when nothing of it lives any more; then one
// Finished.
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

/// Exit codes of a rank that could not be started, as shells have them.
inline constexpr std::uint32_t kExitNotRunnable = 126, kExitNotFound = 127;

class Job {
 public:
  /// `spec` has passed check_job. `link` must outlive the job.
  /// `keeper`: for its first process outside of a container.
  Job(boost::asio::io_context& io, Link& link, wire::JobSpec spec, const ProcessDefaults& defaults,
      PreparedKeeper keeper);

  /// What an ImageOrder before the job has found; before prepare().
  void use_image(container::ReadyImage image) { image_ = std::move(image); }

  /// Fences earlier attempts, makes folder, cgroup, sockets and pipes, starts sortie-pmix.
  boost::asio::awaitable<Result<wire::JobReady>> prepare();

  /// Spawns all ranks, with `env` on top of the job's own. Once, after prepare.
  boost::asio::awaitable<void> start(wire::Environment env);

  /// TERM to every rank, KILL after `grace`. Before start(): no rank will be started, and once
  /// prepared the job is finished at once. With `peers_lost`, or less grace than the job's, ranks
  /// are told that there is no time to wait for others (training::kHurrySuffix).
  void stop(std::chrono::milliseconds grace, bool peers_lost = false);

  Result<> acknowledge_output(std::uint64_t bytes) { return pump_.acknowledge(bytes); }
  void discard_output() { pump_.discard(); }
  /// A launcher has a new connection, over the same link object. `same`: it is the one that had the
  /// last connection. It is told what it may not know: another one all that there is, the same one
  /// what was under way; both get the output and the events from where adopt.log_sizes and
  /// adopt.events end.
  void resend(const wire::Adopt& adopt, bool same);
  /// The number of the first RankEvent that resend() will send.
  std::uint64_t first_event(const wire::Adopt& adopt, bool same) const {
    return same ? events_.first_from(adopt.events) : events_.first_unsent();
  }
  /// The launcher has taken so many RankEvents.
  void acknowledge_events(std::uint64_t count) { events_.acknowledge(count); }
  /// Error: this job has no stdin, or more came than its window allows.
  Result<> take_input(const wire::Input& input);
  /// For a rank of this host; dropped when it is gone. Error: no rank of this host, or no line.
  Result<> take_answer(const wire::RankAnswer& answer);
  /// Streams between hosts. Error: this job has none, or the message can not be.
  Result<> take_forward(const wire::Message& message);
  /// The connection to the launcher is gone, and with it the streams that it relayed.
  void drop_forwards() {
    if (forwards_) forwards_->drop_all();
  }
  /// Error: this job has no sortie-pmix.
  Result<> to_pmix(const wire::Message& message);
  /// A keeper that somebody has stopped (SIGSTOP) goes on: frozen, it could not end its rank.
  void wake_keepers() const;
  /// Keeps the run folder from looking old; cheap, for every heartbeat.
  void refresh_folder();
  /// What a heartbeat says of the ranks, and of the last commit. `gap`: time since the last call in
  /// which this process did not run.
  void fill(wire::Heartbeat& beat, std::chrono::steady_clock::duration gap);
  /// Sends a StackDump for each of these ranks.
  boost::asio::awaitable<void> dump_stacks(wire::DumpStacks order);
  /// A child that is no keeper and ends by itself: it is not taken for an orphan of a rank.
  void keep_child(pid_t pid) { keepers_.insert(pid); }
  /// SIGCHLD has come.
  void reap();

  const wire::JobSpec& spec() const { return spec_; }
  const std::string& folder() const { return folder_.path(); }
  bool prepared() const { return prepared_; }
  bool started() const { return started_; }
  bool stopped() const { return stopped_; }
  bool finished() const { return finished_; }
  /// Ends sortie-pmix and sortie-health and sends Finished. By itself after the last rank.
  boost::asio::awaitable<void> finish();
  /// Waits for Finished to be sent. False after `limit` (an unkillable process).
  boost::asio::awaitable<bool> wait_finished(std::chrono::steady_clock::duration limit);
  /// Removes folder and cgroup; ends sortie-pmix where it still runs.
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
    Fd in, out, err;  // the rank's ends, until its keeper has them
    std::string program, searched_path;
    pid_t pid = 0;
    std::optional<oom::Group> group;  // of its container
    wire::RankExited exited;
    bool has_status = false;
    bool keeper_lost = false;
    bool gone = false;
    bool drained = false;  // all of its output was handed out
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
  /// Error: the program needs the PMIx that this host does not have.
  void share_memory_in_a_folder();
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
  /// To the launcher, also to a later one; about a rank, or about the host (-1).
  void send_error(ErrorCode code, std::string message, std::int32_t rank = -1);
  void send_error(ErrorCode code, std::string message, const Rank& rank) {
    send_error(code, std::move(message), static_cast<std::int32_t>(rank.spec->rank));
  }
  static void set_time_of_death(wire::RankExited& exited);
  void resend_ends();
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
  std::deque<wire::HealthEvent> health_events_;  // the last ones, for a launcher that comes back
  std::uint64_t health_number_ = 0;              // of the last one
  std::optional<container::ReadyImage> image_;
  std::unique_ptr<container::Boxes> boxes_;
  std::unique_ptr<Forwards> forwards_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  OutputPump pump_;
  std::set<pid_t> keepers_;  // and sortie-health: children that are alive, as far as reaped
  std::map<pid_t, int> orphan_statuses_;  // of children that are no keeper, by pid
  std::size_t exited_ = 0;
  std::uint64_t dropped_events_ = 0;
  std::vector<wire::RunnerError> errors_;  // all that were reported
  KeptEvents events_;                      // where ranks may be held
  std::optional<std::chrono::steady_clock::time_point> folder_touched_;
  PmixMemory pmix_memory_;
  ProgressTable progress_;
  CommittedStep committed_;
  bool progress_refused_ = false;                        // a line was broken, and that was said
  std::set<boost::asio::steady_timer*> finish_waiters_;  // of wait_finished()
  boost::asio::steady_timer group_timer_;                // of tick_groups()
  bool prepared_ = false;
  bool pmix_up_ = false;
  bool started_ = false;
  bool stopped_ = false;
  bool finished_ = false;
  bool sweeping_ = false;
  bool resending_ = false;  // ends of ranks come after the output that is sent again
};

}  // namespace sortie::runner
