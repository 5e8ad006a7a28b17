#include "launcher/warm/kept_runner.h"

#include <utility>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/base/log.h"

namespace sortie::launcher::warm {
namespace asio = boost::asio;
using std::chrono::milliseconds;

namespace {

/// Read buffer of an idle runner, to save memory, and of a busy one, which grows when a read fills
/// it.
constexpr std::size_t kIdleRead = 256, kBusyRead = 4u << 10, kMostRead = 64u << 10;
/// Time limit for a pong. A dead link is detected within it.
constexpr milliseconds kPongTime{15'000};
/// A runner exits itself this long after its time, or after this many missed pings.
constexpr milliseconds kBeyondTime{60'000};
constexpr int kPingsMissed = 3;

}  // namespace

void Line::count_busy(int more) {
  const bool rested = busy == 0;
  busy += more;
  if (!closed && rested != (busy == 0)) connection->rest(busy == 0);
}

void Line::close() {
  if (std::exchange(closed, true)) return;
  connection->close();
}

KeptRunner::KeptRunner(asio::any_io_executor executor, std::shared_ptr<Line> line,
                       std::unique_ptr<Channel> channel, milliseconds ping_interval)
    : line_(std::move(line)),
      channel_(std::move(channel)),
      ping_interval_(ping_interval),
      changed_(executor, Clock::time_point::max()) {
  ++line_->runners;
}

KeptRunner::~KeptRunner() {
  KeptRunner::close("");
}

void KeptRunner::start() {
  const auto self = shared_from_this();
  spawn(changed_.get_executor(), [self] { return self->read_loop(); });
}

void KeptRunner::close(const std::string& why) {
  if (state_ == State::closed) return;
  if (!why.empty()) log::info("{}: a runner is no longer kept: {}", line_->host, why);
  if (state_ == State::busy) line_->count_busy(-1);
  state_ = State::closed;
  channel_->close();
  changed_.cancel();
  if (--line_->runners == 0) line_->close();
}

asio::awaitable<void> KeptRunner::read_loop() {
  const auto self = shared_from_this();
  std::string buffer;
  std::size_t wanted = kIdleRead;
  while (state_ != State::closed) {
    // A runner at the end of its conversation counts as idle from here on.
    const bool converses = state_ == State::busy && !end_;
    if (!converses) wanted = kIdleRead;
    if (converses && wanted < kBusyRead) wanted = kBusyRead;
    if (buffer.size() != wanted) std::string(wanted, '\0').swap(buffer);
    const auto count = co_await channel_->read_some(buffer);
    if (state_ == State::closed) co_return;
    if (!count || *count == 0) {
      // The reason, if any, is on the runner's stderr.
      close(count ? "it has ended" : count.error().message);
      co_return;
    }
    heard_ = Clock::now();
    asked_.reset();
    line_->bytes += *count;
    const bool was_full = *count == buffer.size();
    std::string_view bytes = std::string_view(buffer).substr(0, *count);
    while (!bytes.empty() && state_ != State::closed) {
      const auto said = std::make_shared<std::string>();
      const auto control = scan_.take(bytes, *said);
      if (!said->empty()) {
        if (state_ != State::busy || !begun_ || end_) {
          close("it sent a frame outside of a conversation");
          co_return;
        }
        co_await sink_(said);
      }
      const bool good = control && (!*control || take(**control));
      if (!good) close(control ? "it sent an unexpected frame" : control.error().message);
    }
    if (was_full) wanted = std::min(kMostRead, 4 * wanted);
  }
}

bool KeptRunner::take(const wire::FrameScan::Control& control) {
  if (control.type == wire::Serving::pong) return true;
  if (control.type == wire::Serving::begun && state_ == State::busy && !begun_) {
    begun_ = true;
  } else if (control.type == wire::Serving::ended && begun_ && !end_) {
    const auto end = wire::read_end(control.payload);
    if (!end) return false;
    end_ = *end;
  } else {
    return false;
  }
  changed_.cancel();
  return true;
}

asio::awaitable<bool> KeptRunner::begin(Sink sink, milliseconds persist, milliseconds limit) {
  const auto self = shared_from_this();
  if (state_ != State::idle) co_return false;
  state_ = State::busy;
  line_->count_busy(1);
  sink_ = std::move(sink);
  begun_ = false;
  end_.reset();
  persist_ = persist;
  give_up_ = Clock::now() + limit;
  // Wait for a ping that is being written, because only one write may be active.
  while (writing_ && state_ == State::busy && Clock::now() < give_up_) {
    changed_.expires_at(give_up_);
    co_await changed_.async_wait(kToken);
  }
  if (writing_ && state_ == State::busy) close("it takes no more bytes");
  if (state_ != State::busy) co_return false;
  const wire::ServeTerms terms{static_cast<std::uint32_t>((persist + kBeyondTime).count()),
                               static_cast<std::uint32_t>((kPingsMissed * ping_interval_).count())};
  const auto words = std::make_shared<std::string>(wire::serving_frame(terms) +
                                                   wire::serving_frame(wire::Serving::begin));
  spawn(changed_.get_executor(), [self, words]() -> asio::awaitable<void> {
    const auto written = co_await self->channel_->write(*words);
    if (!written) self->close(written.error().message);
  });
  while (!begun_ && state_ == State::busy && Clock::now() < give_up_) {
    changed_.expires_at(give_up_);
    co_await changed_.async_wait(kToken);
  }
  if (!begun_) close("no answer to a new conversation");
  give_up_ = Clock::time_point::max();
  co_return state_ == State::busy;
}

asio::awaitable<Result<>> KeptRunner::write(std::shared_ptr<std::string> bytes) {
  const auto self = shared_from_this();
  line_->bytes += bytes->size();
  co_return co_await channel_->write(*bytes);
}

asio::awaitable<std::optional<wire::ConversationEnd>> KeptRunner::ended() {
  const auto self = shared_from_this();
  while (state_ == State::busy && !end_) {
    if (Clock::now() >= give_up_) {
      close("its conversation did not end");
      break;
    }
    changed_.expires_at(give_up_);
    co_await changed_.async_wait(kToken);
  }
  co_return end_;
}

void KeptRunner::hurry(milliseconds limit) {
  give_up_ = std::min(give_up_, Clock::now() + limit);
  changed_.cancel();
}

void KeptRunner::rest() {
  if (state_ != State::busy) return;
  state_ = State::idle;
  line_->count_busy(-1);
  sink_ = {};
  give_up_ = Clock::time_point::max();
  idle_since_ = heard_ = Clock::now();
  asked_.reset();
  if (persist_.count() == 0) close("it was to be closed");
}

void KeptRunner::look(Clock::time_point now) {
  if (state_ != State::idle) return;
  if (now >= until()) return close("its time is over");
  if (asked_ && now - *asked_ > kPongTime) return close("no sign of life");
  if (asked_ || writing_ || now - heard_ < ping_interval_) return;
  asked_ = now;
  const auto self = shared_from_this();
  spawn(changed_.get_executor(), [self] { return self->ping(); });
}

asio::awaitable<void> KeptRunner::ping() {
  const std::string frame = wire::serving_frame(wire::Serving::ping);
  writing_ = true;
  const auto written = co_await channel_->write(frame);
  writing_ = false;
  if (!written) close(written.error().message);
  changed_.cancel();
}

}  // namespace sortie::launcher::warm
