#include "launcher/host/reconnect.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "common/asio/token.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kFirstStep{250}, kLastStep{5000};

/// Whether retrying is useless: the runner on the host has refused. ErrorCode::io is not final: the
/// runner could not find out.
bool is_final(const std::optional<wire::RunnerError>& refusal) {
  return refusal && refusal->code != error_code_name(ErrorCode::io);
}

}  // namespace

Reconnect::Reconnect(Parts parts)
    : parts_(std::move(parts)),
      until_(Clock::now() + parts_.time),
      pause_(parts_.executor),
      step_(kFirstStep) {}

void Reconnect::give_up() {
  given_up_ = true;
  pause_.cancel();
  if (current_) current_->close();
}

/// The next pause: doubled each time, with random jitter of up to a quarter, because hosts that
/// were lost together should not reconnect together.
milliseconds Reconnect::next_pause() {
  thread_local std::minstd_rand random(std::random_device{}());
  const milliseconds step = step_;
  step_ = std::min(kLastStep, 2 * step_);
  const auto quarter = static_cast<unsigned>(step.count() / 4 + 1);
  return step - milliseconds(random() % quarter);
}

asio::awaitable<Result<>> Reconnect::attempt(std::shared_ptr<HostSession> session) {
  auto connected = co_await session->connect(parts_.transport, parts_.binary);
  if (!connected) co_return connected;
  wire::Adopt order = parts_.make_order();
  auto adopted = co_await session->adopt(std::move(order), parts_.binary.sha256());
  co_return adopted;
}

asio::awaitable<Result<std::shared_ptr<HostSession>>> Reconnect::run() {
  const auto self = shared_from_this();
  std::string trouble;
  if (parts_.first_pause.count() > 0) {
    pause_.expires_after(parts_.first_pause);
    co_await pause_.async_wait(kToken);
    if (given_up_) co_return fail(ErrorCode::interrupted, "given up");
  }
  for (;;) {
    ++attempts_;
    const std::shared_ptr<HostSession> session = parts_.make_session();
    current_ = session;
    auto reached = co_await attempt(session);
    current_.reset();
    if (given_up_) {
      session->close();
      co_return fail(ErrorCode::interrupted, "given up");
    }
    if (reached) co_return session;
    session->close();
    trouble = fmt::format("{}: {}", error_code_name(reached.error().code), reached.error().message);
    if (is_final(session->refusal())) co_return fail(ErrorCode::lost, reached.error().message);
    if (Clock::now() >= until_)
      co_return fail(ErrorCode::lost,
                     fmt::format("not reached again in {} attempts within {} s; the last one: {}",
                                 attempts_, parts_.time.count() / 1000, trouble));
    pause_.expires_after(std::min<Clock::duration>(
        next_pause(), std::max<Clock::duration>(until_ - Clock::now(), milliseconds(0))));
    co_await pause_.async_wait(kToken);
    if (given_up_) co_return fail(ErrorCode::interrupted, "given up");
  }
}

}  // namespace sortie::launcher
