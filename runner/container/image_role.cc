#include "runner/container/image_role.h"

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <utility>

#include "common/asio/spawn.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner::container {
namespace {

constexpr std::chrono::seconds kSayEvery{15};

}  // namespace

void ImageRole::start(wire::ImageOrder order) {
  busy_ = true;
  ready_.reset();
  image_ = order.image;
  at_ = "looking for " + order.image;
  spawn(io_, work(std::move(order)));
  spawn(io_, say_that_it_works());
}

/// An engine may pull a layer for a long time without output, but the launcher gives up on a silent
/// host.
boost::asio::awaitable<void> ImageRole::say_that_it_works() {
  boost::asio::steady_timer pause(io_);
  for (;;) {
    pause.expires_after(kSayEvery);
    co_await pause.async_wait(kToken);
    if (!busy_) co_return;
    const wire::ImageProgress progress{at_};
    link_.send(progress);
  }
}

boost::asio::awaitable<void> ImageRole::work(wire::ImageOrder order) {
  bool pulled = false;
  std::function<void(const wire::ImageProgress&)> on_progress =
      [this](const wire::ImageProgress& progress) {
        at_ = progress.text;
        link_.send(progress);
      };
  Result<ReadyImage> found =
      co_await have_image(calls_, std::move(order), std::move(on_progress), pulled);
  busy_ = false;
  if (!found) {
    on_failure_(found.error());
    co_return;
  }
  wire::ImageReady ready;
  ready.image_id = found->image.id;
  ready.repo_digest = found->image.repo_digest;
  ready.engine_version = found->engine.version;
  ready.bytes = found->image.bytes;
  ready.pulled = pulled ? 1 : 0;
  ready_ = std::move(*found);
  link_.send(ready);
}

std::optional<ReadyImage> ImageRole::take(const std::string& image) {
  if (image != image_) return std::nullopt;
  return std::exchange(ready_, std::nullopt);
}

}  // namespace sortie::runner::container
