// ImageOrder: has the image here before a job comes, and remembers what it found for that job.
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

  /// Answers with ImageProgress* and ImageReady, or calls on_failure.
  void start(wire::ImageOrder order);
  bool busy() const { return busy_; }
  /// What is known of that image; nothing when another one was ordered last.
  std::optional<ReadyImage> take(const std::string& image);

 private:
  boost::asio::awaitable<void> work(wire::ImageOrder order);
  boost::asio::awaitable<void> say_that_it_works();

  boost::asio::io_context& io_;
  Link& link_;
  EngineCalls calls_;
  std::function<void(Error)> on_failure_;
  std::string image_, at_;  // at_: what the engine is at, as it was said last
  std::optional<ReadyImage> ready_;
  bool busy_ = false;
};

}  // namespace sortie::runner::container
