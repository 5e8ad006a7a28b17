// The stdin of `sortie exec`, for many readers at their own pace. A regular file is read where it
// is; what comes from a pipe or a terminal is kept in a temporary file as long as a host still
// needs it. It is read as fast as the fastest host takes it, and never far ahead of the slowest.
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
    std::function<void()> on_more;        // size() has grown, or ended() is true
    std::function<void(Error)> on_error;  // once; nothing more comes
    std::function<bool()> wanted;         // whether more is to be read now
  };
  /// `fd` is duplicated. Error: it is closed.
  static Result<std::shared_ptr<InputSource>> open(boost::asio::any_io_executor executor, int fd);

  void start(Listener listener);
  /// `wanted` may have become true.
  void resume();
  void close();

  std::uint64_t size() const { return size_; }
  bool ended() const { return ended_; }
  /// At most `limit` bytes from `offset` on, which is at most size().
  Result<std::string> read(std::uint64_t offset, std::size_t limit);
  /// No host needs what is before `offset`.
  void discard_before(std::uint64_t offset) { spill_.discard_before(offset); }

 private:
  InputSource(boost::asio::any_io_executor executor, Fd fd);
  void take();
  void fail_with(Error error);

  boost::asio::any_io_executor executor_;
  boost::asio::posix::stream_descriptor watched_;
  Fd fd_;
  bool regular_ = false, watchable_ = false;
  std::uint64_t base_ = 0;  // of a regular file: where it stood
  std::uint64_t size_ = 0;
  bool ended_ = false, waiting_ = false, closed_ = false;
  SpillFile spill_;
  Listener listener_;
};

}  // namespace sortie::launcher
