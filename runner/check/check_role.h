// The runner's side of `sortie check`: instead of a job it gets requests about this host and
// answers each with reports. README.md has the objects. Requests are answered one at a time, in
// order.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/base/result.h"
#include "runner/check/peer_listener.h"
#include "runner/process/process_defaults.h"
#include "runner/streams/link.h"

namespace sortie::runner::check {

class CheckRole : public std::enable_shared_from_this<CheckRole> {
 public:
  CheckRole(boost::asio::io_context& io, Link& link, const ProcessDefaults& defaults)
      : io_(io), link_(link), defaults_(defaults) {}
  ~CheckRole();

  /// Queues a request. ErrorCode::protocol: it is too large, or too many are queued. Malformed
  /// requests are only reported as done.
  Result<> take(const std::string& json);

 private:
  boost::asio::awaitable<void> answer_all();
  boost::asio::awaitable<void> answer(const nlohmann::json& request);
  boost::asio::awaitable<void> look_around(const nlohmann::json& request);
  boost::asio::awaitable<void> reach(const nlohmann::json& request);
  boost::asio::awaitable<void> bandwidth(const nlohmann::json& request);
  boost::asio::awaitable<void> link(const nlohmann::json& request);
  void listen(const nlohmann::json& request);
  /// Sends a report and waits until it is written: what follows may block this thread.
  boost::asio::awaitable<void> report(const nlohmann::json& part);
  void send(const nlohmann::json& part);

  boost::asio::io_context& io_;
  Link& link_;
  const ProcessDefaults& defaults_;
  std::deque<std::string> requests_;
  bool answering_ = false;
  std::shared_ptr<PeerListener> listener_;
  std::string token_;
};

}  // namespace sortie::runner::check
