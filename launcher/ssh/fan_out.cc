#include "launcher/ssh/fan_out.h"

namespace sortie::launcher::ssh {
namespace asio = boost::asio;

FanOut::Slot::Slot(std::shared_ptr<FanOut> owner) : owner_(std::move(owner)) {
  place_ = owner_->slots_.insert(owner_->slots_.end(), this);
}

void FanOut::Slot::leave() {
  if (!counted_) return;
  counted_ = false;
  owner_->slots_.erase(place_);
  --owner_->active_;
  owner_->admit();
}

bool FanOut::Slot::at_work(Clock::time_point now) {
  const std::uint64_t moved = bytes_ ? bytes_() : 0;
  if (moved != moved_) {
    moved_ = moved;
    last_moved_ = now;
  }
  return now - last_moved_ < owner_->patience_;
}

FanOut::FanOut(asio::any_io_executor executor, std::size_t width,
               std::chrono::milliseconds patience)
    : width_(width), patience_(patience), queue_(executor), timer_(executor) {}

asio::awaitable<std::shared_ptr<FanOut::Slot>> FanOut::enter() {
  const auto self = shared_from_this();
  if (active_ < width_ && queue_.empty()) {
    ++active_;
  } else {
    look_around();
    co_await queue_.wait();  // admit() has counted it
  }
  co_return std::make_shared<Slot>(self);
}

void FanOut::admit() {
  while (active_ < width_ && !queue_.empty()) {
    ++active_;
    queue_.wake_one();
  }
}

// While coroutines wait, periodically releases the slots of hosts that have moved no byte for
// `patience_`.
void FanOut::look_around() {
  if (looking_) return;
  looking_ = true;
  timer_.expires_after(patience_ / 4);
  timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (!self || error) return;
    self->looking_ = false;
    const auto now = Clock::now();
    for (auto next = self->slots_.begin(); next != self->slots_.end() && !self->queue_.empty();) {
      Slot* slot = *next++;
      if (!slot->at_work(now)) slot->leave();
    }
    if (!self->queue_.empty()) self->look_around();
  });
}

}  // namespace sortie::launcher::ssh
