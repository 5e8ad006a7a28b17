// SORTIE_SOCKET: a Unix stream socket per rank on which the rank (or any descendant) reports
// events, one JSON object a line. A line that is too long, not UTF-8 or no object is dropped with a
// warning; a writer is never kept waiting for the launcher.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace sortie::runner {

/// A JSON object as far as the runner looks at it: UTF-8 without control characters, in braces.
bool is_event_line(std::string_view line);

class EventSocket {
 public:
  static constexpr std::size_t kMaxLineBytes = 64u << 10;
  static constexpr std::size_t kMaxConnections = 64;

  using OnLine = std::function<void(std::string line)>;

  /// `name` is for warnings ("rank 3").
  EventSocket(boost::asio::io_context& io, std::string name, OnLine on_line)
      : io_(io), acceptor_(io), name_(std::move(name)), on_line_(std::move(on_line)) {}

  /// Binds `path` (0600) and listens.
  Result<> open(const std::string& path);

  /// The rank is gone: takes what is still in the connections, then closes everything.
  void finish();

 private:
  struct Connection {
    explicit Connection(boost::asio::io_context& io) : stream(io) {}
    boost::asio::posix::stream_descriptor stream;
    std::string line;
    bool skipping = false;  // inside a line that is too long
  };

  void await_connection();
  void accept_all();
  void await_data(const std::shared_ptr<Connection>& connection);
  bool read_all(Connection& connection);
  void take(Connection& connection, std::string_view bytes);
  void emit(std::string& line);
  void warn(std::string_view what);

  boost::asio::io_context& io_;
  boost::asio::posix::stream_descriptor acceptor_;
  std::vector<std::shared_ptr<Connection>> connections_;
  std::string name_;
  OnLine on_line_;
  unsigned warnings_ = 0;
};

}  // namespace sortie::runner
