// The stdin of a rank: writes the launcher's data into a pipe and returns credit when the rank has
// read some. Never queues more than the window.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/wire/message.h"

namespace sortie::runner {

class InputFeed {
 public:
  using OnCredit = std::function<void(const wire::InputCredit&)>;

  InputFeed(boost::asio::io_context& io, std::uint32_t window, OnCredit on_credit)
      : pipe_(io), window_(window), on_credit_(std::move(on_credit)) {}

  /// Creates the pipe and returns the rank's end, for its keeper.
  Result<Fd> open();

  /// Queues input. Error: it exceeds the window, or follows the end of input. Dropped if the rank
  /// has closed its stdin.
  Result<> take(const wire::Input& input);

  /// Closes the pipe: the rank has ended, or its launcher is gone.
  void close();

 private:
  void await_room();
  void write_some();

  boost::asio::posix::stream_descriptor pipe_;
  const std::uint64_t window_;
  OnCredit on_credit_;
  std::deque<std::string> queue_;
  std::size_t written_of_front_ = 0;
  std::uint64_t queued_bytes_ = 0;
  bool waiting_ = false;
  bool ended_ = false;
};

}  // namespace sortie::runner
