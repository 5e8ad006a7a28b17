// The stdin of a rank: what the launcher sends goes into a pipe, and credit goes back when the rank
// has room for more. Never holds more than the window.
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

  /// Makes the pipe; the rank's end is returned, for its keeper.
  Result<Fd> open();

  /// Error: more than the window, or bytes after the end. What comes when the rank reads no more is
  /// dropped.
  Result<> take(const wire::Input& input);

  /// Nothing of the rank lives any more, or its launcher is gone.
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
