// ForwardRouter: relays streams between hosts that can not reach each other
// (common/wire/forward_messages.h): passes the messages of one host's runner on to the other's.
// Hosts are not trusted: a stream is closed if an end sends more than it was granted.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "common/wire/message.h"

namespace sortie::launcher {

class ForwardRouter {
 public:
  /// Sends to the runner of a host of the run. Returns false if the host is not connected.
  using Send = std::function<bool(const std::string& host, const wire::Message& message)>;
  explicit ForwardRouter(Send send) : send_(std::move(send)) {}

  /// Handles one of the four forward messages, received from the runner of `host`.
  void take(const std::string& host, const wire::Message& message);
  /// Closes all streams of a host whose runner or connection is gone.
  void host_gone(const std::string& host);

  std::size_t streams() const { return ends_.size() / 2; }
  std::uint64_t bytes() const { return bytes_; }  // relayed data in bytes

 private:
  /// One end of a stream: host and the stream's id there.
  using End = std::pair<std::string, std::uint64_t>;
  struct Other {
    End end;
    std::uint64_t granted = 0;  // bytes that the other end may still send to this one
  };

  void open(const std::string& host, const wire::ForwardOpen& order);
  void close(const End& end, const std::string& why, bool tell_end);
  std::size_t streams_of(const std::string& host) const;

  Send send_;
  std::map<End, Other> ends_;  // both ends of each stream
  std::uint64_t next_ = wire::kForwardByLauncher;
  std::uint64_t bytes_ = 0;
};

}  // namespace sortie::launcher
