// TransportRouter: the transport for all hosts of a command. "localhost" is reached by a child
// process, every other name by SSH or runner.transport. Released connections are kept: the next
// connect() to such a host reuses one, without handshake and authentication.
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

  /// A kept connection is not tested before its first command. If it turns out to be dead, exec()
  /// replaces it by a new one and returns the errors of that connect().
  boost::asio::awaitable<Result<std::unique_ptr<Connection>>> connect(std::string host) override;

  /// Number of kept connections.
  std::size_t idle() const;

  /// Cuts the link to a host deliberately (link_faults.h). During the cut connect() waits for at
  /// most the constructor's `connect_timeout`, then fails with ErrorCode::connect.
  void cut_link(const std::string& host, std::chrono::milliseconds time);

  struct State;  // shared with its connections

 private:
  std::shared_ptr<State> state_;
};

/// Makes the transport that `runner` configures. Must be destroyed before the io_context of
/// `executor`.
std::unique_ptr<TransportRouter> make_transport(boost::asio::any_io_executor executor,
                                                const config::RunnerConfig& runner);

}  // namespace sortie::launcher
