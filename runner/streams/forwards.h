// Forwards: byte streams between ranks of this host and ports of other hosts of the job, relayed by
// the launcher (common/wire/forward_messages.h). A rank connects to a Unix socket and writes a line
// "HOST PORT"; all further bytes in both directions are the stream. When the connection to the
// launcher is lost, streams end, and programs must connect again.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "common/wire/message.h"
#include "runner/streams/unix_listener.h"

namespace sortie::runner {

class Forwards {
 public:
  using Send = std::function<void(const wire::Message&)>;

  Forwards(boost::asio::io_context& io, Send send)
      : io_(io),
        listener_(io, [this](Fd connection) { take_connection(std::move(connection)); }),
        send_(std::move(send)) {}
  ~Forwards() { close(); }

  /// Binds `path` (0600) and listens there for ranks.
  Result<> open(const std::string& path) { return listener_.open(path, wire::kMaxForwards); }
  /// Handle the launcher's messages. Error: the message violates the protocol.
  Result<> take(const wire::ForwardOpen& order);
  Result<> take(const wire::ForwardData& data);
  Result<> take(const wire::ForwardCredit& credit);
  Result<> take(const wire::ForwardClose& end);
  /// Ends all streams: the launcher that relayed them is gone.
  void drop_all();
  /// Ends all streams and accepts no more.
  void close();

 private:
  struct Stream;
  using Shared = std::shared_ptr<Stream>;

  void take_connection(Fd fd);
  Shared add(std::uint64_t id, Fd socket);
  boost::asio::awaitable<void> read_request(Shared stream);
  boost::asio::awaitable<void> connect(Shared stream);
  boost::asio::awaitable<void> read_from_program(Shared stream);
  boost::asio::awaitable<void> write_to_program(Shared stream);
  void end(Stream& stream, const std::string& why, bool tell);

  boost::asio::io_context& io_;
  UnixListener listener_;
  Send send_;
  std::map<std::uint64_t, Shared> streams_;
  std::uint64_t next_ = 1;
};

}  // namespace sortie::runner
