// The way back to a host whose connection broke while its runner holds the ranks: again and again,
// with growing pauses, until the runner there has handed its job over to a new connection, has said
// that there is none any more, or the time is over.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "launcher/host/host_session.h"

namespace sortie::launcher {

class Reconnect : public std::enable_shared_from_this<Reconnect> {
 public:
  /// References must outlive the executor's work.
  struct Parts {
    boost::asio::any_io_executor executor;
    Transport& transport;
    const RunnerBinary& binary;
    /// For each attempt: a session that has taken no step yet, and the order for it, whose link
    /// number is higher than all before.
    std::function<std::shared_ptr<HostSession>()> make_session;
    std::function<wire::Adopt()> make_order;
    std::chrono::milliseconds time{};  // from now on; the attempt that it ends in is finished
    std::chrono::milliseconds first_pause{};  // before the first attempt
  };
  explicit Reconnect(Parts parts);

  /// Once. A session that has been adopted, ready for start(). Errors: lost (the runner there does
  /// not hold the job, or the time is over; the message says which), interrupted (give_up()).
  boost::asio::awaitable<Result<std::shared_ptr<HostSession>>> run();
  /// Ends run() as soon as may be. Idempotent.
  void give_up();

  unsigned attempts() const { return attempts_; }

 private:
  boost::asio::awaitable<Result<>> attempt(std::shared_ptr<HostSession> session);
  std::chrono::milliseconds next_pause();

  Parts parts_;
  const std::chrono::steady_clock::time_point until_;
  boost::asio::steady_timer pause_;
  std::shared_ptr<HostSession> current_;
  std::chrono::milliseconds step_{};
  unsigned attempts_ = 0;
  bool given_up_ = false;
};

}  // namespace sortie::launcher
