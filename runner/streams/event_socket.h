// SORTIE_SOCKET: a Unix stream socket per rank on which the rank, or any descendant, reports
// events, one JSON object per line. A line that is too long, not UTF-8 or no object is dropped with
// a warning. A writer never blocks because of the launcher. A connection that has sent
// {"type":"listen"} receives the launcher's answers to the rank, one per line; answers that exceed
// its buffer because it does not read are dropped.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "runner/streams/unix_listener.h"

namespace sortie::runner {

/// Whether `line` looks like a JSON object: UTF-8 without control characters, in braces. Does not
/// parse it.
bool is_event_line(std::string_view line);

class EventSocket {
 public:
  static constexpr std::size_t kMaxLineBytes = 64u << 10;
  static constexpr std::size_t kMaxConnections = 64;
  static constexpr std::size_t kMaxAnswerBytes = 256u << 10;  // unread ones, per connection

  using OnLine = std::function<void(std::string line)>;

  /// `name` appears in warnings ("rank 3").
  EventSocket(boost::asio::io_context& io, std::string name, OnLine on_line)
      : io_(io),
        listener_(io, [this](Fd connection) { take_connection(std::move(connection)); }),
        name_(std::move(name)),
        on_line_(std::move(on_line)) {}

  /// Binds `path` (0600) and listens.
  Result<> open(const std::string& path) { return listener_.open(path, kMaxConnections); }

  /// Sends one line to all connections that listen.
  void answer(const std::string& line);
  /// Drops the queued answers of a launcher that is gone. A partially written one is completed.
  void forget_answers();

  /// The rank is gone: reads what is left in the connections, then closes everything.
  void finish();

 private:
  struct Connection {
    explicit Connection(boost::asio::io_context& io) : stream(io) {}
    boost::asio::posix::stream_descriptor stream;
    std::string line;
    bool skipping = false;  // inside a line that is too long
    bool listens = false;
    bool awaits_room = false;          // waits for room in its socket
    std::deque<std::string> answers;   // with their line ends
    std::size_t written_of_front = 0;  // bytes of the first answer
    std::size_t answer_bytes = 0;      // of all queued answers
  };

  void take_connection(Fd fd);
  void await_data(const std::shared_ptr<Connection>& connection);
  bool read_all(Connection& connection);
  void take(Connection& connection, std::string_view bytes);
  void emit(Connection& connection);
  void write_answers(const std::shared_ptr<Connection>& connection);
  void warn(std::string_view what);

  boost::asio::io_context& io_;
  UnixListener listener_;
  std::vector<std::shared_ptr<Connection>> connections_;
  std::string name_;
  OnLine on_line_;
  unsigned warnings_ = 0;
};

}  // namespace sortie::runner
