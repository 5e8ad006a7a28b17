#include "launcher/host/link_faults.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <utility>

#include "common/asio/token.h"

namespace sortie::launcher {
namespace asio = boost::asio;

namespace {

/// State shared by a channel and its reads and writes, which may outlive it.
struct Guarded {
  std::shared_ptr<const LinkFaults> faults;
  std::string host;
  std::unique_ptr<Channel> inner;
  asio::steady_timer reading, writing;  // wait for the end of a cut
  bool closed = false;
};
using Shared = std::shared_ptr<Guarded>;

Error closed_here() {
  return {ErrorCode::lost, "the channel was closed here"};
}

/// Waits until the link is up. Returns false if the channel was closed meanwhile.
asio::awaitable<bool> passed(Shared channel, asio::steady_timer& timer) {
  while (!channel->closed) {
    const auto until = channel->faults->until(channel->host);
    if (until <= LinkFaults::Clock::now()) co_return true;
    timer.expires_at(until);
    co_await timer.async_wait(kToken);
  }
  co_return false;
}

class GuardedChannel : public Channel {
 public:
  explicit GuardedChannel(Shared shared) : shared_(std::move(shared)) {}
  ~GuardedChannel() override { GuardedChannel::close(); }

  asio::awaitable<Result<std::size_t>> read_some(std::span<char> buffer) override {
    return read(shared_, buffer);
  }
  asio::awaitable<Result<>> write(std::string_view bytes) override { return send(shared_, bytes); }
  std::string stderr_tail() const override { return shared_->inner->stderr_tail(); }
  asio::awaitable<Result<ProcessStatus>> wait() override { return shared_->inner->wait(); }
  void close() override {
    if (std::exchange(shared_->closed, true)) return;
    shared_->reading.cancel();
    shared_->writing.cancel();
    shared_->inner->close();
  }

 private:
  static asio::awaitable<Result<std::size_t>> read(Shared shared, std::span<char> buffer) {
    auto count = co_await shared->inner->read_some(buffer);
    const bool arrives = co_await passed(shared, shared->reading);
    if (!arrives && count) co_return std::unexpected(closed_here());
    co_return count;
  }
  static asio::awaitable<Result<>> send(Shared shared, std::string_view bytes) {
    const bool goes = co_await passed(shared, shared->writing);
    if (!goes) co_return std::unexpected(closed_here());
    auto sent = co_await shared->inner->write(bytes);
    co_return sent;
  }

  Shared shared_;
};

}  // namespace

void LinkFaults::cut(const std::string& host, std::chrono::milliseconds time) {
  auto& until = until_[host];
  until = std::max(until, Clock::now() + time);
}

LinkFaults::Clock::time_point LinkFaults::until(const std::string& host) const {
  const auto entry = until_.find(host);
  return entry == until_.end() ? Clock::time_point{} : entry->second;
}

asio::awaitable<bool> LinkFaults::up(std::shared_ptr<const LinkFaults> faults, std::string host,
                                     std::chrono::milliseconds limit) {
  if (faults->until(host) <= Clock::now()) co_return true;
  const auto executor = co_await asio::this_coro::executor;
  asio::steady_timer timer(executor);
  const auto deadline = Clock::now() + limit;
  while (Clock::now() < deadline) {
    const auto until = faults->until(host);
    if (until <= Clock::now()) co_return true;
    timer.expires_at(std::min(until, deadline));
    co_await timer.async_wait(kToken);
  }
  co_return faults->until(host) <= Clock::now();
}

std::unique_ptr<Channel> LinkFaults::guard(std::shared_ptr<const LinkFaults> faults,
                                           std::string host, asio::any_io_executor executor,
                                           std::unique_ptr<Channel> channel) {
  return std::make_unique<GuardedChannel>(std::make_shared<Guarded>(
      Guarded{std::move(faults), std::move(host), std::move(channel), asio::steady_timer(executor),
              asio::steady_timer(executor)}));
}

}  // namespace sortie::launcher
