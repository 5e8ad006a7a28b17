#include "launcher/ssh/server_gate.h"

#include <algorithm>
#include <random>

namespace sortie::launcher::ssh {
namespace asio = boost::asio;
namespace {

constexpr double kLeast = 1, kMost = 1e6;
// sshd drops only a fraction of the connections beyond its limit, so a small cut finds the limit
// again sooner.
constexpr double kCut = 0.6;

}  // namespace

asio::awaitable<std::shared_ptr<ServerGate::Pass>> ServerGate::enter() {
  const auto self = shared_from_this();
  if (active_ < static_cast<int>(limit_) && queue_.empty())
    ++active_;
  else
    co_await queue_.wait();  // admit() has counted it
  co_return std::make_shared<Pass>(self);
}

void ServerGate::admit() {
  while (active_ < static_cast<int>(limit_) && !queue_.empty()) {
    ++active_;
    queue_.wake_one();
  }
}

void ServerGate::Pass::got_in() {
  ServerGate& gate = *owner_;
  gate.last_in_ = Clock::now();
  gate.limit_ = std::min(kMost, gate.limit_ + (gate.doubling_ ? 1 : 1 / gate.limit_));
  leave();
}

void ServerGate::Pass::dropped() {
  ServerGate& gate = *owner_;
  gate.doubling_ = false;
  if (since_ >= gate.last_cut_) {
    gate.limit_ = std::max(kLeast, std::min<double>(gate.limit_, gate.active_) * kCut);
    gate.last_cut_ = Clock::now();
  }
  leave();
}

void ServerGate::Pass::unreachable() {
  owner_->limit_ = kMost;
  leave();
}

void ServerGate::Pass::leave() {
  if (!counted_) return;
  counted_ = false;
  --owner_->active_;
  owner_->admit();
}

std::chrono::milliseconds retry_delay(int tries) {
  thread_local std::minstd_rand random{std::random_device{}()};
  const double most = std::min(2000.0, 100.0 * static_cast<double>(1 << std::clamp(tries, 0, 10)));
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(std::uniform_real_distribution<>(most / 4, most)(random)));
}

}  // namespace sortie::launcher::ssh
