// Handles an ImageOrder: makes sure that the image is here before a job starts, and keeps the
// result for that job.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <optional>
#include <string>

#include "common/wire/container_messages.h"
#include "runner/container/image.h"
#include "runner/streams/link.h"

namespace sortie::runner::container {

class ImageRole {
 public:
  ImageRole(boost::asio::io_context& io, Link& link, const ProcessDefaults& defaults,
            std::function<void(Error)> on_failure)
      : io_(io), link_(link), calls_(io, defaults), on_failure_(std::move(on_failure)) {}

  /// Sends ImageProgress messages and then ImageReady, or calls on_failure.
  void start(wire::ImageOrder order);
  bool busy() const { return busy_; }
  /// Returns the result for `image` and forgets it; nullopt if the last order was for another
  /// image.
  std::optional<ReadyImage> take(const std::string& image);

 private:
  boost::asio::awaitable<void> work(wire::ImageOrder order);
  boost::asio::awaitable<void> say_that_it_works();

  boost::asio::io_context& io_;
  Link& link_;
  EngineCalls calls_;
  std::function<void(Error)> on_failure_;
  std::string image_, at_;  // at_: the engine's last progress text
  std::optional<ReadyImage> ready_;
  bool busy_ = false;
};

}  // namespace sortie::runner::container
