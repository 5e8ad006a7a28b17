// The runner's part of a WireGuard mesh between the hosts of a job. It carries out orders of the
// launcher and answers each with one report. README.md has the objects and their order.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/base/result.h"
#include "runner/process/process_defaults.h"
#include "runner/streams/link.h"
#include "runner/tunnel/holder_process.h"
#include "runner/tunnel/prober.h"

namespace sortie::runner::tunnel {

class Tunnel : public std::enable_shared_from_this<Tunnel> {
 public:
  struct Events {
    std::function<void(pid_t)> on_child;    // pid of a child that exits by itself
    std::function<void(Error)> on_failure;  // an order failed
    std::function<void(Error)> on_lost;     // a tunnel that was up is lost
  };
  Tunnel(boost::asio::io_context& io, Link& link, const ProcessDefaults& defaults, Events events);

  /// Starts to carry out an order. ErrorCode::protocol: not an order, or the previous one has no
  /// report yet.
  Result<> take(const std::string& json);
  /// Stops answering probes of other hosts: the ranks start.
  void settle();
  /// Ends the tunnel and waits until nothing of it is left. Returns false if something remains.
  boost::asio::awaitable<bool> close();

 private:
  using Answer = Result<nlohmann::json>;
  boost::asio::awaitable<void> carry_out(nlohmann::json order);
  boost::asio::awaitable<Answer> open(nlohmann::json order);
  boost::asio::awaitable<Answer> survey(nlohmann::json order);
  boost::asio::awaitable<Answer> raise(nlohmann::json order);
  boost::asio::awaitable<Answer> prove(nlohmann::json order);
  boost::asio::awaitable<void> clean_up_after_loss();
  Result<> take_port(std::uint16_t wanted, int tries);

  boost::asio::io_context& io_;
  Link& link_;
  const ProcessDefaults& defaults_;
  Events events_;
  std::shared_ptr<HolderProcess> holder_;
  std::shared_ptr<Prober> outside_, inside_;
  Prober::Token token_{};
  std::string name_;
  std::uint16_t me_ = 0, port_ = 0;
  bool busy_ = false;
};

}  // namespace sortie::runner::tunnel
