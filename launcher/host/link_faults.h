// Links to hosts that are cut on purpose for a time (`sortie chaos`): nothing that the launcher and
// the host send each other arrives until it is over, and no new connection is made. What was sent
// meanwhile arrives then, as after lost packets. Lives on the launcher's I/O thread.
//
// What it does not do: the connection below stays open, so the host sees no broken one before this
// side gives it up, and then sees it at once; what hosts send each other is not touched.
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

  /// From now on for `time`; one that is cut already stays so for the longer of both.
  void cut(const std::string& host, std::chrono::milliseconds time);
  /// When the link is up again; a time that has passed where it is up.
  Clock::time_point until(const std::string& host) const;

  /// Waits until the link is up, no longer than `limit`; false: it is not.
  static boost::asio::awaitable<bool> up(std::shared_ptr<const LinkFaults> faults, std::string host,
                                         std::chrono::milliseconds limit);
  /// `channel` of a host, which obeys its cuts.
  static std::unique_ptr<Channel> guard(std::shared_ptr<const LinkFaults> faults, std::string host,
                                        boost::asio::any_io_executor executor,
                                        std::unique_ptr<Channel> channel);

 private:
  std::map<std::string, Clock::time_point> until_;
};

}  // namespace sortie::launcher
