#include "runner/container/image_role.h"

#include <utility>

#include "runner/process/spawn.h"

namespace sortie::runner::container {

void ImageRole::start(wire::ImageOrder order) {
  busy_ = true;
  ready_.reset();
  image_ = order.image;
  spawn(io_, work(std::move(order)));
}

boost::asio::awaitable<void> ImageRole::work(wire::ImageOrder order) {
  bool pulled = false;
  std::function<void(const wire::ImageProgress&)> on_progress =
      [this](const wire::ImageProgress& progress) { link_.send(progress); };
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
