// A pass over the hosts in steps, each with all of them at once: look at each host, let those of a
// site reach each other, measure bandwidth, measure between sites. A step is over when its last
// host is or has used up its time.
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
  /// As far as it is.
  std::vector<HostResult> results() const;
  /// For a line of progress: hosts whose step is over, what the step is.
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
  std::vector<std::size_t> in_mesh_;  // hosts
  std::vector<std::string> tunnel_orders_, tunnel_reports_;
  std::size_t done_ = 0;
  const char* step_ = "";
};

}  // namespace sortie::launcher::check
