// The stdin of `sortie exec`, for many readers that read at different rates. A regular file is read
// in place; input from a pipe or a terminal is kept in a temporary file while a host still needs
// it. Reading follows the fastest host, but is bounded relative to the slowest.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "launcher/exec/spill_file.h"

namespace sortie::launcher {

class InputSource : public std::enable_shared_from_this<InputSource> {
 public:
  struct Listener {
    std::function<void()> on_more;        // size() has grown or ended() became true
    std::function<void(Error)> on_error;  // called once; reading has stopped
    std::function<bool()> wanted;         // whether to read more now
  };
  /// Duplicates `fd`. Error: `fd` is closed.
  static Result<std::shared_ptr<InputSource>> open(boost::asio::any_io_executor executor, int fd);

  void start(Listener listener);
  /// Call when `wanted` may have become true.
  void resume();
  void close();

  std::uint64_t size() const { return size_; }
  bool ended() const { return ended_; }
  /// Returns at most `limit` bytes from `offset`, which must be at most size().
  Result<std::string> read(std::uint64_t offset, std::size_t limit);
  /// Frees data before `offset`, which no host needs any more.
  void discard_before(std::uint64_t offset) { spill_.discard_before(offset); }

 private:
  InputSource(boost::asio::any_io_executor executor, Fd fd);
  void take();
  void fail_with(Error error);

  boost::asio::any_io_executor executor_;
  boost::asio::posix::stream_descriptor watched_;
  Fd fd_;
  bool regular_ = false, watchable_ = false;
  std::uint64_t base_ = 0;  // initial position of a regular file
  std::uint64_t size_ = 0;
  bool ended_ = false, waiting_ = false, closed_ = false;
  SpillFile spill_;
  Listener listener_;
};

}  // namespace sortie::launcher
