#include "runner/runner.h"

#include <fmt/core.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "common/asio/spawn.h"
#include "common/base/boot_clock.h"
#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "common/base/process_status.h"
#include "runner/unix_time.h"

namespace sortie::runner {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Time limit for Hello and JobSpec. No job exists before that, so it may be long.
constexpr auto kHandshakeTimeout = std::chrono::seconds(120);
/// Maximum time between TERM and KILL of the ranks when the launcher is gone.
constexpr milliseconds kLostLauncherGrace{5000};
/// If a timer is later than this, the process was stopped or the machine was suspended.
constexpr milliseconds kNotRunning{1000};
/// Interval at which a holder of memory checks whether another one has taken over.
constexpr milliseconds kLookForSuccessor{100};
/// Time in addition to the grace, for KILL, reaping and cleanup.
constexpr milliseconds kEndingMargin{15000};

}  // namespace

Runner::Runner(ProcessDefaults defaults, std::string build, PreparedKeeper keeper)
    : defaults_(std::move(defaults)),
      build_(std::move(build)),
      keeper_(std::move(keeper)),
      link_(io_),
      signals_(io_),
      beat_timer_(io_),
      handshake_timer_(io_),
      held_(io_) {}

int Runner::run(Fd in, Fd out) {
  if (auto opened = link_.open(std::move(in), std::move(out)); !opened) {
    log::error("{}", opened.error().message);
    return kExitUsage;
  }
  sigset_t watched;
  sigemptyset(&watched);
  for (int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&watched, number);
  const int fd = ::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) {
    log::error("{}", os_error(errno, "signalfd").message);
    return kExitFailed;
  }
  signals_.assign(fd);
  spawn(io_, link_.write_loop());
  spawn(io_, serve_signals());
  spawn(io_, limit_handshake());
  spawn(io_, converse());
  io_.run();
  return exit_code_;
}

boost::asio::awaitable<void> Runner::converse() {
  for (;;) {
    const unsigned generation = link_.generation();
    auto message = co_await link_.read();
    if (link_.generation() != generation) continue;  // it was the end of an earlier connection
    if (!message || !*message) {
      if (leaving_) break;
      const bool holds = may_hold() && (message || message.error().code == ErrorCode::lost);
      if (holds) {
        const bool adopted = co_await hold();
        if (adopted) continue;
        if (leaving_) break;
      }
      if (memory_) co_await outlast_launcher();
      const bool clean = message && !memory_ && (!job_ || job_->finished());
      if (!clean) {
        const bool garbage = !message && message.error().code == ErrorCode::protocol;
        if (garbage) send_error(message.error());
        log::error("{}", message ? "the launcher is gone (end of input)" : message.error().message);
        exit_code_ = garbage ? kExitFailed : kExitLost;
      }
      break;
    }
    if (auto* adopt = std::get_if<wire::Adopt>(&**message);
        adopt && greeted_ && !job_ && !memory_) {
      co_await hand_over(std::move(*adopt));
      break;
    }
    const Result<bool> more = handle(**message);
    if (more && *more) continue;
    if (!more) {
      send_error(more.error());
      exit_code_ = kExitFailed;
    }
    break;
  }
  co_await shut_down();
}

/// Ends what still runs, removes what was created, and stops the loop. Bounded even with unkillable
/// ranks.
boost::asio::awaitable<void> Runner::shut_down() {
  ending_ = true;
  handshake_timer_.cancel();
  beat_timer_.cancel();
  if (job_) {
    job_->discard_output();
    const auto deadline = Clock::now() + short_grace() + kEndingMargin;
    if (!job_->finished()) job_->stop(short_grace());
    boost::asio::steady_timer pause(io_);
    while (preparing_ && Clock::now() < deadline) {
      pause.expires_after(milliseconds(10));
      co_await pause.async_wait(kToken);
    }
    if (job_->started()) {
      const bool finished = co_await job_->wait_finished(deadline - Clock::now());
      if (!finished) exit_code_ = kExitFailed;
    }
    co_await job_->clean_up();
    // Its holder ends by itself, unless it was killed together with the launcher.
    if (job_->spec().memory != 0 && exit_code_ == kExitLost)
      remove_unheld_memory(job_->spec().run_id);
  }
  if (tunnel_) co_await tunnel_->close();  // after the ranks
  if (memory_) memory_->remove();
  co_await link_.flush(kFlushTimeout);
  io_.stop();
}

bool Runner::may_hold() const {
  return job_ && job_->spec().hold_ms > 0 && job_->started() && !job_->stopped();
}

/// Waits for a new connection while the launcher, or the connection to it, is gone. The ranks
/// continue, and block in write() when their pipes are full. Returns true if a launcher has
/// connected.
boost::asio::awaitable<bool> Runner::hold() {
  link_.close();
  job_->drop_forwards();
  const auto until = Clock::now() + milliseconds(job_->spec().hold_ms);
  log::warning("no connection to the launcher; its ranks are held for {} ms", job_->spec().hold_ms);
  job_->mark_held(unix_ms() + job_->spec().hold_ms);
  while (link_.broken() && !leaving_) {
    const auto left = until - Clock::now();
    if (left <= left.zero()) co_return false;
    co_await held_.wait(left);
  }
  job_->unmark_held();
  co_return !leaving_;
}

/// Keeps the memory without a launcher, until the hold time is over or another holder has taken
/// over.
boost::asio::awaitable<void> Runner::outlast_launcher() {
  link_.close();
  const auto until = Clock::now() + memory_hold_;
  boost::asio::steady_timer pause(io_);
  while (!leaving_ && Clock::now() < until && memory_->is_ours()) {
    pause.expires_after(kLookForSuccessor);
    co_await pause.async_wait(kToken);
  }
}

/// Passes the connection of a new launcher on. This runner does nothing else.
boost::asio::awaitable<void> Runner::hand_over(wire::Adopt adopt) {
  handshake_timer_.cancel();
  co_await link_.flush(kFlushTimeout);
  auto holder = co_await offer_connection(io_, std::move(adopt), link_.in(), link_.out());
  if (!holder) {
    send_error(holder.error());
    exit_code_ = kExitFailed;
    co_return;
  }
  link_.release();
  handed_over_ = true;
  boost::asio::posix::stream_descriptor stream(io_, holder->release());
  char nothing = 0;
  co_await stream.async_read_some(boost::asio::buffer(&nothing, 1), kToken);
}

Result<> Runner::adopt(const wire::Adopt& adopt, Fd in, Fd out) {
  const wire::JobSpec& spec = job_->spec();
  if (adopt.protocol_version != wire::kProtocolVersion)
    return fail(ErrorCode::protocol,
                fmt::format("the runner that holds this run speaks protocol {}, the launcher {}",
                            wire::kProtocolVersion, adopt.protocol_version));
  if (adopt.run_id != spec.run_id || adopt.attempt != spec.attempt ||
      adopt.node_rank != spec.node_rank)
    return fail(ErrorCode::protocol, "the runner here holds another run");
  if (ending_ || leaving_ || !may_hold())
    return fail(ErrorCode::lost, "the runner that held this run is ending it");
  const bool same = adopt.epoch == epoch_;
  if (adopt.epoch < epoch_ || (same && adopt.link <= link_number_))
    return fail(ErrorCode::runner,
                same ? fmt::format("this launcher has a later connection (link {} is not above {})",
                                   adopt.link, link_number_)
                     : fmt::format("another launcher has adopted this run (epoch {} is below {})",
                                   adopt.epoch, epoch_));
  SORTIE_TRY(link_.reopen(std::move(in), std::move(out)));
  epoch_ = adopt.epoch;
  link_number_ = adopt.link;
  log::info("{} launcher of epoch {} has a new connection (link {})", same ? "the" : "another",
            epoch_, link_number_);
  // The launcher's side of all streams ended with its connection, which may not be broken here.
  job_->drop_forwards();
  link_.send(wire::Adopted{epoch_, link_number_, job_->first_event(adopt, same)});
  // The launcher needs this host's time to date the ends that are sent again.
  send_heartbeat(0, Clock::duration::zero());
  job_->resend(adopt, same);
  beat_timer_.cancel();
  spawn(io_, link_.write_loop());
  spawn(io_, beat());
  held_.notify();
  return {};
}

void Runner::set_heartbeat(std::uint32_t interval_ms, std::uint32_t timeout_ms) {
  const bool beating = beat_interval_.count() > 0;
  beat_interval_ = milliseconds(interval_ms);
  beat_timeout_ = milliseconds(timeout_ms);
  handshake_timer_.cancel();
  if (!beating) spawn(io_, beat());
}

boost::asio::awaitable<void> Runner::leave_after(Error error) {
  if (leaving_) co_return;
  send_error(error);
  exit_code_ = kExitFailed;
  leaving_ = true;
  co_await link_.flush(kFlushTimeout);
  link_.close();
}

boost::asio::awaitable<void> Runner::prepare() {
  const Result<wire::JobReady> ready = co_await job_->prepare();
  preparing_ = false;
  if (job_->stopped()) {
    co_await job_->finish();  // a Stop arrived meanwhile; it is answered with Finished
  } else if (ready) {
    listen_for_adoption();
    link_.send(*ready);
    const wire::Environment nothing_more;
    if (job_->spec().autostart) co_await job_->start(nothing_more);
  } else {
    co_await leave_after(ready.error());
  }
}

void Runner::listen_for_adoption() {
  if (job_->spec().hold_ms == 0) return;
  adoptions_ =
      std::make_unique<AdoptionListener>(io_, [this](const wire::Adopt& offer, Fd in, Fd out) {
        return adopt(offer, std::move(in), std::move(out));
      });
  if (auto opened = adoptions_->open(job_->folder()); !opened)
    log::warning("this run can not be adopted: {}", opened.error().message);
}

void Runner::send_heartbeat(std::uint64_t sequence, Clock::duration gap) {
  wire::Heartbeat beat;
  beat.sequence = sequence;
  beat.time_unix_ms = unix_ms();
  beat.time_boot_ms = static_cast<std::uint64_t>(boot_ms());
  if (job_) job_->fill(beat, gap);
  link_.send(beat);
}

/// Sends heartbeats and checks for the launcher's. Time in which this process did not run (stopped,
/// or the machine suspended) does not count as the launcher's silence: its messages may still be in
/// transit.
boost::asio::awaitable<void> Runner::beat() {
  const unsigned generation = link_.generation();
  std::uint64_t sequence = 0;
  Clock::time_point last_sent{};
  Clock::duration gap{};  // time since the last heartbeat in which this process did not run
  for (;;) {
    const milliseconds interval = beat_interval_, timeout = beat_timeout_;
    const milliseconds tick = std::max(milliseconds(1), std::min(interval, timeout / 4));
    const Clock::time_point before = Clock::now();
    beat_timer_.expires_after(tick);
    const auto [error] = co_await beat_timer_.async_wait(kToken);
    if (error || link_.broken() || link_.generation() != generation) co_return;
    if (memory_ && !memory_->is_ours()) {
      spawn(io_, leave_after({ErrorCode::lost, memory_->path() + ": another holder has it, or it "
                                                                 "was removed"}));
      co_return;
    }
    const Clock::time_point now = Clock::now();
    const Clock::duration late = now - before - tick;
    if (late > timeout / 2)
      link_.touch();
    else
      link_.excuse(late);
    if (late > kNotRunning) gap += late;
    if (now - last_sent >= interval && link_.queued_bytes() == 0) {
      send_heartbeat(++sequence, std::exchange(gap, Clock::duration::zero()));
      if (job_) {
        job_->wake_keepers();
        job_->refresh_folder();
      }
      last_sent = now;
    }
    if (now - link_.last_received() <= timeout || link_.readable()) continue;
    log::error("no message from the launcher for {} ms", timeout.count());
    if (!may_hold()) exit_code_ = kExitLost;
    link_.close();  // ends the conversation
    co_return;
  }
}

boost::asio::awaitable<void> Runner::limit_handshake() {
  handshake_timer_.expires_after(kHandshakeTimeout);
  const auto [error] = co_await handshake_timer_.async_wait(kToken);
  if (error || job_ || files_ || sweeping_) co_return;
  log::error("no job from the launcher within {} s", kHandshakeTimeout.count());
  link_.close();
}

boost::asio::awaitable<void> Runner::serve_signals() {
  for (;;) {
    const auto [error] =
        co_await signals_.async_wait(boost::asio::posix::stream_descriptor::wait_read, kToken);
    if (error) co_return;
    signalfd_siginfo info;
    while (::read(signals_.native_handle(), &info, sizeof info) == sizeof info)
      on_signal(static_cast<int>(info.ssi_signo));
  }
}

void Runner::on_signal(int number) {
  if (number == SIGCHLD) {
    if (job_) job_->reap();
    return;
  }
  if (handed_over_) return io_.stop();
  const bool again = std::exchange(leaving_, true);
  held_.notify();
  exit_code_ = 128 + number;
  if (job_) job_->stop(again ? milliseconds(0) : short_grace());
  if (again) return;
  send_error({ErrorCode::interrupted, "the runner received " + signal_name(number)});
  spawn(io_, leave_when_finished());
}

/// After a signal, keeps serving the launcher until it has the last output and the results.
boost::asio::awaitable<void> Runner::leave_when_finished() {
  if (job_ && job_->started()) co_await job_->wait_finished(short_grace() + kEndingMargin);
  co_await link_.flush(kFlushTimeout);
  link_.close();
}

void Runner::send_error(const Error& error) {
  log::error("{}", error.message);
  link_.send(wire::RunnerError{std::string(error_code_name(error.code)), error.message, -1});
}

milliseconds Runner::short_grace() const {
  if (!job_) return kLostLauncherGrace;
  return std::min(milliseconds(job_->spec().grace_ms), kLostLauncherGrace);
}

}  // namespace sortie::runner
