#include "runner/job/job.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <csignal>

#include "common/asio/spawn.h"
#include "common/base/boot_clock.h"
#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "common/base/process_status.h"
#include "runner/container/inside.h"
#include "runner/content.h"
#include "runner/job/environment.h"
#include "runner/memory/memory_folder.h"
#include "runner/process/cgroup.h"
#include "runner/unix_time.h"

namespace sortie::runner {
namespace {

using std::chrono::milliseconds;

/// Events are dropped while this much is queued for the launcher: memory must not grow without
/// limit.
constexpr std::size_t kMaxQueuedForEvents = 4u << 20;
constexpr std::size_t kSpawnsBetweenYields = 8;
constexpr std::size_t kKeptHealthEvents = 64;
/// Cleaners of /tmp remove what is days old.
constexpr std::chrono::hours kFolderTouch{1};

}  // namespace

Job::Job(boost::asio::io_context& io, Link& link, wire::JobSpec spec,
         const ProcessDefaults& defaults, PreparedKeeper keeper)
    : io_(io),
      link_(link),
      spec_(std::move(spec)),
      defaults_(defaults),
      keeper_(std::move(keeper)),
      facts_(read_node_facts()),
      base_env_(base_environment(environ)),
      pump_(
          io, spec_.output_window, [this] { link_.wake(); },
          [this](std::size_t slot) { rank_drained(slot); }),
      finalize_check_(io.get_executor(),
                      [this](std::uint32_t rank, bool not_finalized) {
                        for (std::size_t slot = 0; slot < ranks_.size(); ++slot) {
                          if (ranks_[slot]->spec->rank != rank) continue;
                          ranks_[slot]->exited.not_finalized = not_finalized ? 1 : 0;
                          pump_.finish(slot);
                        }
                      }),
      committed_(io, spec_.progress_file),
      group_timer_(io) {
  link_.set_source([this] { return pump_.next(); });
  if (spec_.hold_ms > 0) pump_.keep_unacknowledged();
  if (keeper_.control) keepers_.insert(keeper_.pid);
}

boost::asio::awaitable<void> Job::start(wire::Environment env) {
  started_ = true;
  start_env_ = std::move(env);
  port_.release_port();  // rank 0 will listen on it; the lease is kept
  for (std::size_t slot = 0; slot < ranks_.size(); ++slot) {
    start_rank(slot);
    if (slot % kSpawnsBetweenYields == kSpawnsBetweenYields - 1)
      co_await boost::asio::post(io_, boost::asio::use_awaitable);
  }
  if (boxes_) spawn(io_, tick_groups());
  if (spec_.health && !stopped_) start_health();
}

void Job::start_rank(std::size_t slot) {
  Rank& rank = *ranks_[slot];
  Fd in = std::move(rank.in), out = std::move(rank.out), err = std::move(rank.err);
  if (stopped_) {  // Stop arrived before the start
    rank.exited.signaled = 1;
    rank.exited.code = SIGTERM;
    rank.exited.stopped = 1;
    set_time_of_death(rank.exited);
    in.reset();
    out.reset();
    err.reset();
    return rank_gone(slot);
  }
  HeldSpec held;
  held.title = fmt::format("sortie-keep-{}", rank.spec->local_rank % 1000);
  held.env = environment_of(rank);
  if (!binding_.ranks.empty()) held.cpus = binding_.ranks[slot].cpus;
  rank.searched_path = env_value(held.env, "PATH");
  if (in) held.stdin_fd = in.get();
  held.stdout_fd = out.get();
  held.stderr_fd = err.get();
  held.cgroup = rank.cgroup;
  held.job_cgroup = cgroup_;
  held.run_folder = folder_.path();
  held.defaults = defaults_;
  const Result<> started = start_process(slot, held);
  if (rank.process.keeper() > 0) keepers_.insert(rank.process.keeper());
  in.reset();
  out.reset();
  err.reset();
  if (started) return;
  send_error(ErrorCode::spawn, started.error().message, rank);
  rank.exited.code = kExitNotRunnable;
  set_time_of_death(rank.exited);
  rank_gone(slot);
}

/// Starts the rank here, or in its container, where process 1 looks for the program and the folder.
Result<> Job::start_process(std::size_t slot, HeldSpec& held) {
  Rank& rank = *ranks_[slot];
  const auto report = [this, slot](const KeeperReport& what) { on_report(slot, what); };
  if (boxes_) {
    held.argv = boxes_->argv(spec_.argv);
    held.announce = true;
    held.refuse_mpi = spec_.mpi != 0 && !pmix_up_ && spec_.world_size > 1;
    if (rank.searched_path.empty()) rank.searched_path = boxes_->path(slot);
    rank.program = held.argv[0];
    return boxes_->start(slot, rank.process, held, report);
  }
  held.argv = spec_.argv;
  rank.program = held.argv[0];
  held.candidates = program_candidates(spec_.argv[0], rank.searched_path);
  held.folders = {spec_.work_dir, std::string(env_value(base_env_, "HOME")), "/"};
  return rank.process.start_prepared(std::move(keeper_), held, report);
}

std::vector<std::string> Job::environment_of(const Rank& rank) const {
  RankContext context;
  context.config_path = config_path_;
  context.socket_path = rank.socket_path;
  if (forwards_) context.forward_path = forward_path();
  if (spec_.memory != 0) context.memory_folder = memory_folder_path(spec_.run_id, spec_.host);
  context.cpus = facts_.cpus;
  const std::size_t index = static_cast<std::size_t>(rank.spec - spec_.ranks.data());
  if (!binding_.ranks.empty()) context.threads = binding_.ranks[index].threads;
  context.amd_gpus =
      !topology_.gpus.empty() && topology_.gpus.front().vendor == cpu::Gpu::Vendor::amd;
  context.pmix_env = pmix_lines_for(pmix_env_, rank.spec->rank);
  context.start_env = start_env_;
  if (!boxes_) return rank_environment(base_env_, spec_, *rank.spec, context);
  wire::RankSpec adapted = *rank.spec;
  boxes_->adapt(adapted.env, index);
  return rank_environment(container::default_environment(spec_), spec_, adapted, context);
}

void Job::send_error(ErrorCode code, std::string message, std::int32_t rank) {
  send_error(error_code_name(code), std::move(message), rank);
}

void Job::send_error(std::string_view code, std::string message, std::int32_t rank) {
  wire::RunnerError error{std::string(code), std::move(message), rank};
  link_.send(error);
  if (spec_.hold_ms > 0) errors_.push_back(std::move(error));
}

void Job::on_event(const Rank& rank, std::string line) {
  if (take_progress(rank, line)) return;
  wire::RankEvent event{rank.spec->rank, std::move(line)};
  const bool room = link_.queued_bytes() < kMaxQueuedForEvents;
  if (room && !link_.broken()) link_.send(event);
  if (room && spec_.hold_ms > 0) {
    events_.add(std::move(event));
    if (!link_.broken()) events_.mark_sent();
  }
  if (room) return;
  if (dropped_events_++ == 0)
    log::warning("rank {}: events are dropped, the launcher is too slow", rank.spec->rank);
}

/// Runs after the start of the ranks, so that they do not wait for it.
void Job::start_health() {
  HealthHelper::Parts parts;
  parts.folders = {"/tmp", "/dev/shm", folder_.path()};
  if (!in_containers() && !spec_.work_dir.empty()) parts.folders.push_back(spec_.work_dir);
  parts.env = base_env_;
  parts.folder = folder_.path();
  parts.on_line = [this](const std::string& line) { on_health(line); };
  parts.on_pid = [this](pid_t pid) { keepers_.insert(pid); };
  health_ = std::make_unique<HealthHelper>(io_, defaults_, std::move(parts));
  health_->start();
}

/// Numbers each event with a member "n", by which a launcher recognizes one that it already has.
void Job::on_health(const std::string& line) {
  wire::HealthEvent event{fmt::format("{{\"n\":{},{}", ++health_number_, line.substr(1))};
  if (!link_.broken() && link_.queued_bytes() < kMaxQueuedForEvents) link_.send(event);
  if (spec_.hold_ms == 0) return;
  health_events_.emplace_back(boot_ms(), std::move(event));
  if (health_events_.size() > kKeptHealthEvents) health_events_.pop_front();
}

Result<> Job::take_input(const wire::Input& input) {
  if (spec_.input_window == 0) return fail(ErrorCode::protocol, "Input for a job without stdin");
  if (ranks_.empty()) return fail(ErrorCode::protocol, "Input before JobReady");
  return ranks_.front()->input->take(input);
}

Result<> Job::take_answer(const wire::RankAnswer& answer) {
  if (answer.json.size() > EventSocket::kMaxLineBytes || !is_event_line(answer.json))
    return fail(ErrorCode::protocol, "RankAnswer that is no line with a JSON object");
  const auto rank =
      std::ranges::find_if(ranks_, [&](const auto& one) { return one->spec->rank == answer.rank; });
  if (rank == ranks_.end())
    return fail(ErrorCode::protocol,
                fmt::format("RankAnswer for rank {}, which is not of this host", answer.rank));
  (*rank)->events->answer(answer.json);
  return {};
}

Result<> Job::take_forward(const wire::Message& message) {
  if (!forwards_) return fail(ErrorCode::protocol, "a stream for a job that has none");
  return std::visit(
      [this]<class T>(const T& one) -> Result<> {
        if constexpr (std::is_same_v<T, wire::ForwardOpen> ||
                      std::is_same_v<T, wire::ForwardData> ||
                      std::is_same_v<T, wire::ForwardCredit> ||
                      std::is_same_v<T, wire::ForwardClose>)
          return forwards_->take(one);
        else
          return fail(ErrorCode::protocol, "no message of a stream");
      },
      message);
}

Result<> Job::to_pmix(const wire::Message& message) {
  if (!pmix_up_) return fail(ErrorCode::protocol, "a PMIx message for a job without PMIx");
  if (spec_.hold_ms > 0 && !pmix_memory_.answered(message)) return {};
  if (pmix_->running()) pmix_->send(message);
  return {};
}

void Job::wake_keepers() const {
  for (const pid_t keeper : keepers_) ::kill(keeper, SIGCONT);
}

void Job::refresh_folder() {
  const auto now = std::chrono::steady_clock::now();
  if (folder_touched_ && now - *folder_touched_ < kFolderTouch) return;
  folder_touched_ = now;
  folder_.touch();
  mark_in_use();
}

void Job::mark_held(std::uint64_t until_ms) const {
  if (const auto marked = folder_.mark_held(spec_.run_id, until_ms); !marked)
    log::warning("`sortie check` will not name this run: {}", marked.error().message);
}

void Job::resend(const wire::Adopt& adopt, bool same) {
  resending_ = true;
  if (!same)
    for (const auto& rank : ranks_) rank->events->forget_answers();
  for (const auto& rank : ranks_)
    if (rank->pid > 0)
      link_.send(wire::RankStarted{rank->spec->rank, static_cast<std::uint32_t>(rank->pid)});
  for (const wire::RunnerError& error : errors_) link_.send(error);
  for (const auto& [at, event] : health_events_)
    link_.send(
        wire::HealthEvent{fmt::format("{{\"age_ms\":{},{}", boot_ms() - at, event.json.substr(1))});
  const std::uint32_t own_rank = ranks_.front()->spec->rank;
  for (const wire::Message& message :
       same ? pmix_memory_.unanswered() : pmix_memory_.open(own_rank))
    link_.send(message);
  events_.each_from(first_event(adopt, same),
                    [this](const wire::RankEvent& event) { link_.send(event); });
  events_.mark_sent();
  pump_.resend(adopt.log_sizes, [this] { resend_ends(); });
}

void Job::resend_ends() {
  resending_ = false;
  for (const auto& rank : ranks_)
    if (rank->drained) link_.send(rank->exited);
  if (finished_) link_.send(wire::Finished{});
}

boost::asio::awaitable<bool> Job::wait_finished(std::chrono::steady_clock::duration limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!finished_) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= deadline) co_return false;
    // The end of the connection and a signal handler may both wait, so each has its own timer.
    boost::asio::steady_timer woken(io_, deadline);
    const auto mine = finish_waiters_.insert(&woken).first;
    co_await woken.async_wait(kToken);
    finish_waiters_.erase(mine);
  }
  co_return true;
}

boost::asio::awaitable<void> Job::clean_up() {
  if (pmix_ && pmix_->running()) {
    pmix_->stop();
    co_await pmix_->wait_gone(std::chrono::seconds(2));
  }
  co_await end_health();
  co_await remove_boxes();
  if (!cgroup_.empty()) cgroup::remove(cgroup_);
  folder_.remove();
  port_ = PortLease();
}

}  // namespace sortie::runner
