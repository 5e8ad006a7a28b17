// Reconnects to a host whose connection broke while its runner holds the ranks. Retries with
// growing pauses until the old runner has handed its job over to a new connection, the host reports
// that no runner holds the job any more, or the time limit is reached.
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
  /// References must outlive all work on `executor`.
  struct Parts {
    boost::asio::any_io_executor executor;
    Transport& transport;
    const RunnerBinary& binary;
    /// Called for each attempt: make_session() returns an unused session, make_order() the order
    /// for it. Each order has a higher link number than all before.
    std::function<std::shared_ptr<HostSession>()> make_session;
    std::function<wire::Adopt()> make_order;
    std::chrono::milliseconds time{};  // time limit from now; an attempt under way is finished
    std::chrono::milliseconds first_pause{};  // before the first attempt
  };
  explicit Reconnect(Parts parts);

  /// Returns a session after adopt(), ready for start(). May be called once. ErrorCode::lost: the
  /// host does not hold the job, or the time limit was reached (the message says which).
  /// ErrorCode::interrupted: give_up() was called.
  boost::asio::awaitable<Result<std::shared_ptr<HostSession>>> run();
  /// Makes run() end as soon as possible. Idempotent.
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
