// TransportRouter: the one way to all hosts of a command. "localhost" is reached by a child
// process, every other name by SSH or by runner.transport. Connections that were released are kept:
// the next connect() to such a host starts a command on it with neither handshake nor
// authentication.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <memory>

#include "common/config/schema.h"
#include "launcher/host/transport.h"

namespace sortie::launcher {

class TransportRouter : public Transport {
 public:
  TransportRouter(std::unique_ptr<Transport> remote, std::unique_ptr<Transport> local,
                  std::chrono::milliseconds connect_timeout = std::chrono::seconds(10));
  ~TransportRouter() override;

  /// A kept connection is not tried before its first command: one that has died meanwhile is then
  /// replaced by a new one, and exec() has the errors of that one's connect().
  boost::asio::awaitable<Result<std::unique_ptr<Connection>>> connect(std::string host) override;

  /// Connections that wait for their next use.
  std::size_t idle() const;

  /// Cuts the link to a host on purpose (link_faults.h). A connection that is made meanwhile fails
  /// with ErrorCode::connect after `connect_timeout` of the constructor.
  void cut_link(const std::string& host, std::chrono::milliseconds time);

  struct State;  // shared with its connections

 private:
  std::shared_ptr<State> state_;
};

/// As `runner` says. Must be destroyed before the io_context of `executor`.
std::unique_ptr<TransportRouter> make_transport(boost::asio::any_io_executor executor,
                                                const config::RunnerConfig& runner);

}  // namespace sortie::launcher
