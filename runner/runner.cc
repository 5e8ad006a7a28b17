#include "runner/runner.h"

#include <fmt/core.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "common/base/exit_code.h"
#include "common/base/heap.h"
#include "common/base/log.h"
#include "common/base/process_status.h"
#include "runner/files/file_receiver.h"
#include "runner/files/file_sender.h"
#include "runner/job_check.h"
#include "runner/spawn.h"
#include "runner/sweep.h"
#include "runner/unix_time.h"

namespace sortie::runner {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Time for Hello and JobSpec; nothing of a job is here yet, so it may be long.
constexpr auto kHandshakeTimeout = std::chrono::seconds(120);
/// With no launcher to wait for, ranks get no more than this between TERM and KILL.
constexpr milliseconds kLostLauncherGrace{5000};
/// Beyond the grace, for KILL, reaping and cleaning.
constexpr milliseconds kEndingMargin{15000};
constexpr auto kFlushTimeout = std::chrono::seconds(2);

bool is_of_transfer(const wire::Message& message) {
  return std::holds_alternative<wire::FilesManifest>(message) ||
         std::holds_alternative<wire::FilesWanted>(message) ||
         std::holds_alternative<wire::FilePiece>(message) ||
         std::holds_alternative<wire::FilesCredit>(message) ||
         std::holds_alternative<wire::FilesServe>(message) ||
         std::holds_alternative<wire::FilesFetch>(message);
}

bool is_about_images(const wire::Message& message) {
  return std::holds_alternative<wire::ImageOrder>(message) ||
         std::holds_alternative<wire::ImageQuery>(message) ||
         std::holds_alternative<wire::ImageLoad>(message);
}

bool are_heartbeats(std::uint32_t interval_ms, std::uint32_t timeout_ms) {
  return interval_ms > 0 && timeout_ms > interval_ms;
}

}  // namespace

Runner::Runner(ProcessDefaults defaults, std::string build)
    : defaults_(std::move(defaults)),
      build_(std::move(build)),
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
    if (link_.generation() != generation) continue;  // that was the end of an earlier launcher
    if (!message || !*message) {
      if (leaving_) break;
      const bool holds = may_hold() && (message || message.error().code == ErrorCode::lost);
      if (holds) {
        const bool adopted = co_await hold();
        if (adopted) continue;
        if (leaving_) break;
      }
      const bool clean = message && (!job_ || job_->finished());
      if (!clean) {
        const bool garbage = !message && message.error().code == ErrorCode::protocol;
        if (garbage) send_error(message.error());
        log::error("{}", message ? "the launcher is gone (end of input)" : message.error().message);
        exit_code_ = garbage ? kExitFailed : kExitLost;
      }
      break;
    }
    if (auto* adopt = std::get_if<wire::Adopt>(&**message); adopt && greeted_ && !job_) {
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

/// Ends what still runs, removes what was made, ends the loop. Bounded even with unkillable ranks.
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
      co_await pause.async_wait(kAsTuple);
    }
    if (job_->started()) {
      const bool finished = co_await job_->wait_finished(deadline - Clock::now());
      if (!finished) exit_code_ = kExitFailed;
    }
    co_await job_->clean_up();
  }
  co_await link_.flush(kFlushTimeout);
  io_.stop();
}

bool Runner::may_hold() const {
  return job_ && job_->spec().hold_ms > 0 && job_->started() && !job_->stopped();
}

/// The launcher is gone: its ranks live on for a while, and wait in write when their pipes are
/// full. True when another launcher has taken over.
boost::asio::awaitable<bool> Runner::hold() {
  link_.close();
  const auto until = Clock::now() + milliseconds(job_->spec().hold_ms);
  log::warning("the launcher is gone; its ranks are held for {} ms", job_->spec().hold_ms);
  while (link_.broken() && !leaving_) {
    const auto left = until - Clock::now();
    if (left <= left.zero()) co_return false;
    co_await held_.wait(left);
  }
  co_return !leaving_;
}

/// This runner is only the messenger of a new launcher.
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
  co_await stream.async_read_some(boost::asio::buffer(&nothing, 1), kAsTuple);
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
  if (adopt.epoch <= epoch_)
    return fail(ErrorCode::runner,
                fmt::format("another launcher has adopted this run (epoch {} is not above {})",
                            adopt.epoch, epoch_));
  SORTIE_TRY(link_.reopen(std::move(in), std::move(out)));
  epoch_ = adopt.epoch;
  log::info("adopted by a launcher of epoch {}", epoch_);
  link_.send(wire::Adopted{epoch_});
  job_->resend(adopt.log_sizes);
  beat_timer_.cancel();
  spawn(io_, link_.write_loop());
  spawn(io_, beat());
  held_.notify();
  return {};
}

Result<bool> Runner::handle(const wire::Message& message) {
  if (const auto* hello = std::get_if<wire::Hello>(&message)) return handle_hello(*hello);
  if (!greeted_) return fail(ErrorCode::protocol, "the first message must be Hello");
  if (const auto* spec = std::get_if<wire::JobSpec>(&message)) return handle_job(*spec);
  if (const auto* order = std::get_if<wire::FilesOpen>(&message)) return handle_files(*order);
  if (is_about_images(message)) return handle_image(message);
  if (const auto* order = std::get_if<wire::Sweep>(&message)) return handle_sweep(*order);
  if (const auto* request = std::get_if<wire::CheckRequest>(&message))
    return handle_check(*request);
  if (std::holds_alternative<wire::Heartbeat>(message)) return true;
  if (files_ && is_of_transfer(message)) {
    SORTIE_TRY(files_->take(message));
    return true;
  }
  if (std::holds_alternative<wire::Goodbye>(message)) {
    if (!job_ || !job_->started() || job_->finished()) return false;
    return fail(ErrorCode::protocol, "Goodbye while ranks run");
  }
  if (!job_) return fail(ErrorCode::protocol, "an order for a job before JobSpec");
  if (std::holds_alternative<wire::Start>(message))
    return handle_start(std::get<wire::Start>(message));
  if (const auto* stop = std::get_if<wire::Stop>(&message)) {
    log::info("stop: {}", stop->reason);
    job_->stop(milliseconds(stop->grace_ms));
    return true;
  }
  if (const auto* credit = std::get_if<wire::OutputCredit>(&message)) {
    SORTIE_TRY(job_->acknowledge_output(credit->bytes));
    return true;
  }
  if (const auto* input = std::get_if<wire::Input>(&message)) {
    SORTIE_TRY(job_->take_input(*input));
    return true;
  }
  if (std::holds_alternative<wire::PmixFenceDone>(message) ||
      std::holds_alternative<wire::PmixModexRequest>(message) ||
      std::holds_alternative<wire::PmixModexReply>(message) ||
      std::holds_alternative<wire::PmixNamesDone>(message)) {
    SORTIE_TRY(job_->to_pmix(message));
    return true;
  }
  return fail(ErrorCode::protocol, "a message of this type is not for a runner");
}

Result<bool> Runner::handle_hello(const wire::Hello& hello) {
  if (greeted_) return fail(ErrorCode::protocol, "Hello twice");
  greeted_ = true;
  const std::string& mine = build_.empty() ? hello.build : build_;
  link_.send(wire::Hello{wire::kProtocolVersion, mine});
  if (hello.protocol_version != wire::kProtocolVersion)
    return fail(
        ErrorCode::protocol,
        fmt::format("launcher speaks protocol {}, this runner {}; both must be of one build",
                    hello.protocol_version, wire::kProtocolVersion));
  if (!hello.build.empty() && hello.build != mine)
    return fail(ErrorCode::runner,
                fmt::format("this runner is build {}, the launcher expects {}", mine, hello.build));
  return true;
}

Result<bool> Runner::handle_job(const wire::JobSpec& spec) {
  if (job_ || sweeping_ || check_)
    return fail(ErrorCode::protocol, "JobSpec twice, or after another order");
  SORTIE_TRY(check_job(spec));
  if (files_) return_freed_memory();
  job_ = std::make_unique<Job>(io_, link_, spec, defaults_);
  if (images_)
    if (auto image = images_->take(spec.container.image)) job_->use_image(std::move(*image));
  preparing_ = true;
  spawn(io_, prepare());
  set_heartbeat(spec.heartbeat_interval_ms, spec.heartbeat_timeout_ms);
  return true;
}

Result<bool> Runner::handle_files(const wire::FilesOpen& order) {
  if (files_ || job_ || sweeping_ || check_)
    return fail(ErrorCode::protocol, "a transfer out of turn");
  if (!are_heartbeats(order.heartbeat_interval_ms, order.heartbeat_timeout_ms))
    return fail(ErrorCode::protocol, "heartbeat times that can not be");
  const auto on_failure = [this](Error error) { spawn(io_, leave_after(std::move(error))); };
  if (order.purpose == wire::FilesPurpose::get)
    files_ = std::make_unique<FileSender>(io_, link_, on_failure);
  else
    files_ = std::make_unique<FileReceiver>(io_, link_, on_failure);
  SORTIE_TRY(files_->open(order));
  set_heartbeat(order.heartbeat_interval_ms, order.heartbeat_timeout_ms);
  return true;
}

/// Images: what is said about one before a job, or instead of one (`sortie image push`).
Result<bool> Runner::handle_image(const wire::Message& message) {
  if (job_ || sweeping_ || check_)
    return fail(ErrorCode::protocol, "an order for an image after another order");
  const auto on_failure = [this](Error error) { spawn(io_, leave_after(std::move(error))); };
  if (!images_) images_ = std::make_unique<container::ImageRole>(io_, link_, defaults_, on_failure);
  if (!loads_) loads_ = std::make_unique<container::LoadRole>(io_, link_, defaults_, on_failure);
  if (const auto* order = std::get_if<wire::ImageOrder>(&message)) {
    if (!are_heartbeats(order->heartbeat_interval_ms, order->heartbeat_timeout_ms))
      return fail(ErrorCode::protocol, "heartbeat times that can not be");
    if (images_->busy()) return fail(ErrorCode::protocol, "ImageOrder before ImageReady");
    set_heartbeat(order->heartbeat_interval_ms, order->heartbeat_timeout_ms);
    images_->start(*order);
  } else if (const auto* query = std::get_if<wire::ImageQuery>(&message)) {
    if (!are_heartbeats(query->heartbeat_interval_ms, query->heartbeat_timeout_ms))
      return fail(ErrorCode::protocol, "heartbeat times that can not be");
    set_heartbeat(query->heartbeat_interval_ms, query->heartbeat_timeout_ms);
    SORTIE_TRY(loads_->query(*query));
  } else if (const auto* load = std::get_if<wire::ImageLoad>(&message)) {
    SORTIE_TRY(loads_->load(*load));
  }
  return true;
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

/// In place of a job: nothing else is taken from then on but the end.
Result<bool> Runner::handle_sweep(const wire::Sweep& order) {
  if (job_ || sweeping_ || check_)
    return fail(ErrorCode::protocol, "Sweep where there is a job already");
  SORTIE_TRY(check_sweep(order));
  handshake_timer_.cancel();
  sweeping_ = true;
  spawn(io_, sweep(order));
  return true;
}

boost::asio::awaitable<void> Runner::sweep(wire::Sweep order) {
  const wire::Swept swept = co_await sweep_run(io_, std::move(order), defaults_);
  link_.send(swept);
  leaving_ = true;
  co_await link_.flush(kFlushTimeout);
  link_.close();
}

/// The handshake timer stays: a check lasts no longer than a handshake may.
Result<bool> Runner::handle_check(const wire::CheckRequest& request) {
  if (job_ || sweeping_) return fail(ErrorCode::protocol, "CheckRequest after another order");
  if (!check_) check_ = std::make_shared<check::CheckRole>(io_, link_, defaults_);
  SORTIE_TRY(check_->take(request.json));
  return true;
}

Result<bool> Runner::handle_start(const wire::Start& start) {
  if (job_->started()) return fail(ErrorCode::protocol, "Start twice");
  if (job_->stopped()) return true;  // it crossed a Stop
  if (!job_->prepared()) return fail(ErrorCode::protocol, "Start before JobReady");
  SORTIE_TRY(check_environment(start.env, "Start: env"));
  spawn(io_, job_->start(start.env));
  return true;
}

boost::asio::awaitable<void> Runner::prepare() {
  const Result<wire::JobReady> ready = co_await job_->prepare();
  preparing_ = false;
  if (job_->stopped()) {
    co_await job_->finish();  // a Stop came meanwhile and is answered with Finished
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
    log::warning("nobody can adopt this run: {}", opened.error().message);
}

/// Sends heartbeats and listens for the launcher's. Time in which this process did not run
/// (stopped, or the machine asleep) is not the launcher's silence: its messages may still be on
/// their way in.
boost::asio::awaitable<void> Runner::beat() {
  const unsigned generation = link_.generation();
  std::uint64_t sequence = 0;
  Clock::time_point last_sent{};
  for (;;) {
    const milliseconds interval = beat_interval_, timeout = beat_timeout_;
    const milliseconds tick = std::max(milliseconds(1), std::min(interval, timeout / 4));
    const Clock::time_point before = Clock::now();
    beat_timer_.expires_after(tick);
    const auto [error] = co_await beat_timer_.async_wait(kAsTuple);
    if (error || link_.broken() || link_.generation() != generation) co_return;
    const Clock::time_point now = Clock::now();
    if (now - before - tick > timeout / 2) link_.touch();
    if (now - last_sent >= interval && link_.queued_bytes() == 0) {
      link_.send(wire::Heartbeat{++sequence, unix_ms()});
      if (job_) job_->wake_keepers();
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
  const auto [error] = co_await handshake_timer_.async_wait(kAsTuple);
  if (error || job_ || files_ || sweeping_) co_return;
  log::error("no job from the launcher within {} s", kHandshakeTimeout.count());
  link_.close();
}

boost::asio::awaitable<void> Runner::serve_signals() {
  for (;;) {
    const auto [error] =
        co_await signals_.async_wait(boost::asio::posix::stream_descriptor::wait_read, kAsTuple);
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

/// After a signal the launcher is still served, so that it gets the last output and the verdicts.
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
