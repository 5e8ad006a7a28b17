// ControlServer: the supervisor's end of the control socket. Used on the launcher's I/O thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

#include "common/base/result.h"

namespace sortie::launcher {

class ControlServer {
 public:
  struct Orders {
    std::function<nlohmann::ordered_json()> status;  // {"state": ..., ...}
    std::function<void(bool now)> stop;
    /// `sortie sites`: {"do": "ls" | "add" | "remove", ...}; returns the members of the answer. If
    /// empty, such requests are refused.
    std::function<boost::asio::awaitable<Result<nlohmann::ordered_json>>(nlohmann::json order)>
        sites = {};
    /// Cuts the link to a host for `time` (`sortie chaos`). If empty, such requests are refused.
    std::function<Result<>(const std::string& host, std::chrono::milliseconds time)> cut = {};
  };

  ControlServer(boost::asio::any_io_executor executor, Orders orders);
  /// Removes the socket file.
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  /// Listens in folder `run` and serves clients while the I/O thread runs.
  Result<> open(const std::filesystem::path& run, unsigned epoch);

  /// The run has ended: sends `line` to all clients, closes their connections and stops listening.
  void finish(const nlohmann::ordered_json& line);

 private:
  using Socket = boost::asio::local::stream_protocol::socket;
  boost::asio::awaitable<void> accept_loop();
  boost::asio::awaitable<void> serve(std::shared_ptr<Socket> client);
  boost::asio::awaitable<std::string> answer(std::string request);

  boost::asio::any_io_executor executor_;
  Orders orders_;
  boost::asio::local::stream_protocol::acceptor acceptor_;
  std::set<std::shared_ptr<Socket>> clients_;
  std::filesystem::path path_;
};

}  // namespace sortie::launcher
