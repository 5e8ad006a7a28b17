// UnixListener: a Unix stream socket of the run folder, on which ranks connect.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::runner {

class UnixListener {
 public:
  using OnConnection = std::function<void(Fd connection)>;

  UnixListener(boost::asio::io_context& io, OnConnection on_connection)
      : acceptor_(io), on_connection_(std::move(on_connection)) {}

  /// Binds `path` (0600 by the runner's umask) and listens with room for so many that wait.
  Result<> open(const std::string& path, std::size_t backlog);
  bool is_open() const { return acceptor_.is_open(); }
  /// Hands on all connections that wait.
  void accept_all();
  void close();

 private:
  void await_connection();

  boost::asio::posix::stream_descriptor acceptor_;
  OnConnection on_connection_;
};

}  // namespace sortie::runner
