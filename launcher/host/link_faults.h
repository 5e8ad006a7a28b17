// Deliberate link cuts for a limited time (`sortie chaos`). During a cut nothing that the launcher
// and the host send each other arrives, and no new connection is made. Data sent meanwhile arrives
// after the cut, as after lost packets. Used on the launcher's I/O thread.
//
// Limits: the underlying connection stays open, so the host sees it break only when this side
// closes it, and then at once. Traffic between hosts is not affected.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "launcher/host/transport.h"

namespace sortie::launcher {

class LinkFaults {
 public:
  using Clock = std::chrono::steady_clock;

  /// Cuts the link for `time` from now. If it is cut already, the later end counts.
  void cut(const std::string& host, std::chrono::milliseconds time);
  /// End of the cut; a time in the past if the link is up.
  Clock::time_point until(const std::string& host) const;

  /// Waits until the link is up, at most `limit`. Returns false if it is still down.
  static boost::asio::awaitable<bool> up(std::shared_ptr<const LinkFaults> faults, std::string host,
                                         std::chrono::milliseconds limit);
  /// Wraps `channel` of a host so that it obeys the cuts of its link.
  static std::unique_ptr<Channel> guard(std::shared_ptr<const LinkFaults> faults, std::string host,
                                        boost::asio::any_io_executor executor,
                                        std::unique_ptr<Channel> channel);

 private:
  std::map<std::string, Clock::time_point> until_;
};

}  // namespace sortie::launcher
