// ForwardRouter: the launcher's part in streams between hosts that do not reach each other
// (common/wire/forward_messages.h): it passes on what one host's runner sends to the other's. Hosts
// are not trusted: who sends more than was granted loses the stream.
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
  /// Sends to the runner of a host of the run; false where there is none at present.
  using Send = std::function<bool(const std::string& host, const wire::Message& message)>;
  explicit ForwardRouter(Send send) : send_(std::move(send)) {}

  /// One of the four messages, from that host's runner.
  void take(const std::string& host, const wire::Message& message);
  /// Its runner, or the connection to it, is gone: the streams of that host end.
  void host_gone(const std::string& host);

  std::size_t streams() const { return ends_.size() / 2; }
  std::uint64_t bytes() const { return bytes_; }  // of data that was passed on

 private:
  /// A stream as one of its hosts knows it.
  using End = std::pair<std::string, std::uint64_t>;
  struct Other {
    End end;
    std::uint64_t granted = 0;  // bytes that the other one may still send to this one
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
