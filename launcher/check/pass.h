// A pass over the hosts in steps, each on all hosts concurrently: look at each host, connect the
// hosts of a site with each other, measure bandwidth, measure between sites, make a tunnel. A step
// ends when its last host has finished or reached its deadline.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <functional>
#include <memory>
#include <vector>

#include "launcher/check/check_command.h"
#include "launcher/check/check_host.h"

namespace sortie::launcher::tunnel {
class MeshSetup;
}

namespace sortie::launcher::check {

struct PassEnvironment {
  boost::asio::any_io_executor executor;
  Transport& transport;
  const RunnerBinary& binary;
};

class Pass {
 public:
  Pass(PassEnvironment environment, const PlannedJob& job, const Expectations& expect,
       const CheckOptions& options);
  ~Pass();

  boost::asio::awaitable<void> run();
  /// Results so far.
  std::vector<HostResult> results() const;
  /// For a progress line: number of hosts that have finished the step, and its name.
  std::size_t done() const { return done_; }
  const char* step() const { return step_; }

 private:
  using Work = std::function<boost::asio::awaitable<void>(std::size_t)>;
  boost::asio::awaitable<void> for_all(const char* step, Work work);
  boost::asio::awaitable<void> one(std::shared_ptr<Work> work, std::size_t index);
  boost::asio::awaitable<void> look(std::size_t index);
  boost::asio::awaitable<void> listen(std::size_t index);
  boost::asio::awaitable<void> reach(std::size_t index);
  boost::asio::awaitable<void> measure(std::size_t index);
  boost::asio::awaitable<void> try_tunnel();
  boost::asio::awaitable<void> tunnel_step(std::size_t index, std::size_t place);
  boost::asio::awaitable<void> measure_tunnel(std::size_t index, std::size_t place);
  boost::asio::awaitable<void> measure_sites();
  boost::asio::awaitable<void> listen_for_sites(std::size_t index);
  boost::asio::awaitable<void> measure_pair(std::size_t index, std::size_t other);
  boost::asio::awaitable<bool> link_to(std::size_t index, std::size_t other,
                                       std::chrono::milliseconds duration);
  std::size_t next_listening(std::size_t index) const;

  PassEnvironment environment_;
  const PlannedJob& job_;
  const Expectations& expect_;
  const CheckOptions& options_;
  std::vector<std::shared_ptr<CheckHost>> hosts_;
  std::vector<std::vector<std::size_t>> peers_;
  std::string token_;
  std::unique_ptr<tunnel::MeshSetup> mesh_;
  std::vector<std::size_t> in_mesh_;  // indices of the hosts in the tunnel
  std::vector<std::string> tunnel_orders_, tunnel_reports_;
  std::size_t done_ = 0;
  const char* step_ = "";
};

}  // namespace sortie::launcher::check
