// The loops of HostSession: read, write and watch, until the session is lost or closed.
#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "common/asio/token.h"

#include "common/asio/spawn.h"
#include "launcher/host/host_session.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

namespace {
// Limit for a host that accepts no more data; far above what a healthy job queues (credits, fences,
// heartbeats).
constexpr std::size_t kMaxOutgoingBytes = 256u << 20;
/// If a timer fires this late, the process was suspended meanwhile.
constexpr std::chrono::milliseconds kStandstill{500};
/// Time in which what a runner wrote before it ended is read, after a write to it has failed.
constexpr std::chrono::milliseconds kLastWords{2000};
}  // namespace

// Each loop holds the session; close() ends them.
void HostSession::keep_alive() {
  const auto self = shared_from_this();
  spawn(executor_, [self] { return self->write_loop(); });
  spawn(executor_, [self] { return self->watch_loop(); });
}

void HostSession::start(Listener listener) {
  listener_ = std::move(listener);
  if (client_) client_->touch();
  const auto self = shared_from_this();
  if (closed_) {
    if (lost_early_)
      asio::post(executor_, [self] { self->listener_->on_lost(*self->lost_early_); });
    return;
  }
  // What has arrived already is delivered after start(): the caller may start other hosts first.
  asio::post(executor_, [self] { spawn(self->executor_, [self] { return self->read_loop(); }); });
}

asio::awaitable<void> HostSession::read_loop() {
  const auto self = shared_from_this();
  while (!closed_) {
    auto message = co_await receive();
    if (closed_) co_return;
    if (!message) {
      lost(std::move(message).error());
      co_return;
    }
    if (std::holds_alternative<wire::RankEvent>(*message)) ++events_taken_;
    if (const auto* beat = std::get_if<wire::Heartbeat>(&*message)) {
      if (listener_->on_beat) listener_->on_beat(*beat);
    } else {
      listener_->on_message(std::move(*message));
    }
  }
}

asio::awaitable<void> HostSession::write_loop() {
  const auto self = shared_from_this();
  while (!closed_) {
    if (outgoing_.empty()) {
      outgoing_ready_.expires_at(Clock::time_point::max());
      co_await outgoing_ready_.async_wait(kToken);
      continue;
    }
    const auto [frame, counts] = std::move(outgoing_.front());
    outgoing_.pop_front();
    outgoing_bytes_ -= frame->size();
    auto written = co_await client_->write(*frame);
    if (counts) last_progress_ = Clock::now();
    drained_.cancel();
    if (closed_) co_return;
    if (!written) {
      co_await hear_last_words();
      lost(std::move(written).error());
      co_return;
    }
  }
}

/// A runner that reads no more has usually said why. Nothing more is sent to it, and it is read
/// until its end, which is the end of the session if it comes in time.
asio::awaitable<void> HostSession::hear_last_words() {
  reads_no_more_ = true;
  outgoing_.clear();
  outgoing_bytes_ = 0;
  drained_.cancel();
  outgoing_ready_.expires_after(kLastWords);
  co_await outgoing_ready_.async_wait(kToken);
}

asio::awaitable<void> HostSession::watch_loop() {
  const auto self = shared_from_this();
  auto heard = last_heard();
  // Time since `heard` in which this process did not run. If the machine was suspended, a runner on
  // it did not run either.
  Clock::duration excused{};
  for (std::uint64_t sequence = 1; !closed_; ++sequence) {
    const Clock::time_point due = Clock::now() + runner_.heartbeat_interval;
    watch_timer_.expires_at(due);
    co_await watch_timer_.async_wait(kToken);
    if (closed_) co_return;
    const Clock::duration late = Clock::now() - due;
    excused = last_heard() == heard ? excused + late : Clock::duration();
    heard = last_heard();
    // Progress made on the host meanwhile has not been read yet.
    if (late > kStandstill) last_progress_ = std::min(Clock::now(), last_progress_ + late);
    if (lost_patience()) {
      lost({ErrorCode::timeout,
            fmt::format("runner: alive, but without progress for {} s; see whether a disk or a "
                        "container engine hangs there",
                        std::chrono::duration_cast<std::chrono::seconds>(patience_).count())});
      co_return;
    }
    wire::Heartbeat beat;
    beat.sequence = sequence;
    beat.events = events_taken_;
    send(beat);
    if ((!listener_ && !reading_) || Clock::now() - heard - excused <= runner_.heartbeat_timeout)
      continue;
    // First read what has arrived meanwhile.
    watch_timer_.expires_after(std::chrono::milliseconds(500));
    co_await watch_timer_.async_wait(kToken);
    if (closed_ || last_heard() != heard) continue;
    const bool ends = listener_ && runner_.on_launcher_loss == "kill";
    lost({ErrorCode::lost,
          fmt::format(
              "no heartbeat for {} s (runner.heartbeat_timeout){}{}",
              std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - last_heard()).count(),
              ends ? "; " : "", ends ? listener_->job : "")});
    co_return;
  }
}

void HostSession::send(const wire::Message& message) {
  if (closed_ || !client_) return;
  const bool counts = !std::holds_alternative<wire::Heartbeat>(message);
  enqueue({std::make_shared<const std::string>(wire::encode(message)), counts});
}

void HostSession::send(std::shared_ptr<const std::string> frame) {
  if (!closed_ && client_) enqueue({std::move(frame)});
}

void HostSession::enqueue(Outgoing outgoing) {
  if (reads_no_more_) return;
  if (outgoing_bytes_ + outgoing.frame->size() > kMaxOutgoingBytes) {
    lost({ErrorCode::lost, "the host reads no more messages"});
    return;
  }
  outgoing_bytes_ += outgoing.frame->size();
  outgoing_.push_back(std::move(outgoing));
  outgoing_ready_.cancel();
}

void HostSession::lost(Error error) {
  if (closed_) return;
  end(goodbye_ && client_ && client_->at_end());
  if (listener_)
    listener_->on_lost(std::move(error));
  else
    lost_early_ = std::move(error);
}

void HostSession::say_goodbye() {
  if (closed_) return;
  goodbye_ = true;
  send(wire::Goodbye{});
}

void HostSession::close() {
  end(false);
}

void HostSession::end(bool may_release) {
  if (closed_) return;
  closed_ = true;
  watch_timer_.cancel();
  outgoing_ready_.cancel();
  drained_.cancel();
  if (client_) client_->close();
  if (!connection_) return;
  if (may_release)
    connection_->release();
  else
    connection_->close();
}

}  // namespace sortie::launcher
