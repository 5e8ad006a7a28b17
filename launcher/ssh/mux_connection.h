// MuxConnection: a Connection to a host through an OpenSSH master. Each command is a separate
// session there. If the master opens no session (MaxSessions of its server, or the master has
// exited), the host is connected and authenticated by libssh.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/host/transport.h"
#include "launcher/ssh/mux_masters.h"

namespace sortie::launcher::ssh {

using AnewConnection = boost::asio::awaitable<Result<std::unique_ptr<Connection>>>;

class MuxConnection : public Connection {
 public:
  /// `took`: time spent to find the master. `timeout`: limit for opening a session. `anew`:
  /// connects to the host without the master.
  MuxConnection(boost::asio::any_io_executor executor, std::string host, MuxMaster master,
                std::chrono::microseconds took, std::chrono::milliseconds timeout,
                std::function<AnewConnection()> anew);
  ~MuxConnection() override { MuxConnection::close(); }

  boost::asio::awaitable<Result<std::unique_ptr<Channel>>> exec(std::string command) override;
  std::string peer_address() const override;
  std::vector<StageTime> stages() const override;
  std::string through() const override;
  void settled() override;
  void close() override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sortie::launcher::ssh
