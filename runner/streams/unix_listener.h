// UnixListener: listens on a Unix stream socket in the run folder.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <string>

#include "common/asio/alarm.h"
#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::runner {

class UnixListener {
 public:
  using OnConnection = std::function<void(Fd connection)>;

  UnixListener(boost::asio::io_context& io, OnConnection on_connection)
      : acceptor_(io), pause_(io.get_executor()), on_connection_(std::move(on_connection)) {}

  /// Binds `path` (0600 by the runner's umask) and listens. `backlog` is the length of the accept
  /// queue.
  Result<> open(const std::string& path, std::size_t backlog);
  bool is_open() const { return acceptor_.is_open(); }
  /// Accepts all pending connections. Returns false if this process has no free descriptor for the
  /// next one, which stays pending; the listener tries again a little later.
  bool accept_all();
  void close();

 private:
  void await_connection();

  boost::asio::posix::stream_descriptor acceptor_;
  Alarm pause_;
  OnConnection on_connection_;
};

}  // namespace sortie::runner
