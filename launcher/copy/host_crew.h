// HostCrew: the hosts of a copy command. Connects to all hosts, runs one coroutine per host, keeps
// all connections until all hosts are done, then sends Goodbye. A failure of one host does not
// affect the others.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/asio/task_group.h"
#include "common/config/schema.h"
#include "launcher/copy/semaphore.h"
#include "launcher/host/host_session.h"

namespace sortie::launcher {

struct HostResult {
  std::string host;
  std::optional<Error> error;
  wire::FilesDone done;
  bool given_up = false;  // because of a signal: the error is not the host's, and is not printed
};

class HostCrew {
 public:
  using Work = std::function<boost::asio::awaitable<Result<wire::FilesDone>>(
      std::size_t, std::shared_ptr<HostSession>)>;

  /// `runner` must outlive the crew.
  HostCrew(const config::RunnerConfig& runner, std::vector<std::string> hosts);
  ~HostCrew();

  boost::asio::io_context& io() { return io_; }
  std::size_t size() const { return results_.size(); }

  /// Runs `first` (once, before any connection; an error ends the run), then `work` for each host.
  /// Calls `tick` five times per second. SIGINT, SIGTERM and SIGHUP abort: hosts that are not done
  /// get ErrorCode::interrupted. Error: the runner binary is missing, `first` failed, or a signal
  /// arrived during `first`. A signal after the last host is done only shortens the goodbye.
  Result<> run(std::function<boost::asio::awaitable<Result<>>()> first, Work work,
               std::function<void()> tick);
  const std::vector<HostResult>& results() const { return results_; }
  /// 130, 143 or 129 after a signal that arrived before all hosts were done, else nullopt.
  std::optional<int> interrupted() const { return interrupted_; }

 private:
  struct Reach;
  boost::asio::awaitable<void> conduct(std::function<boost::asio::awaitable<Result<>>()> first,
                                       Work work);
  boost::asio::awaitable<void> serve(std::size_t index, Work& work);
  boost::asio::awaitable<Result<wire::FilesDone>> attempt(std::size_t index, Work& work);
  boost::asio::awaitable<void> say_goodbye();
  boost::asio::awaitable<void> watch_signals();
  boost::asio::awaitable<void> tick_loop(std::function<void()> tick);

  const config::RunnerConfig& runner_;
  boost::asio::io_context io_{1};
  std::vector<HostResult> results_;
  std::vector<std::shared_ptr<HostSession>> sessions_;
  std::unique_ptr<Reach> reach_;
  Semaphore connecting_;
  TaskGroup hosts_;       // coroutines of the hosts
  bool serving_ = false;  // `first` has ended
  std::optional<Error> failure_;
  std::optional<int> interrupted_;
};

/// Prints one line per distinct error, hosts folded ("h[03-05]: connect: ..."), on stderr. Returns
/// the exit code of the first error, or 0.
int print_host_errors(const std::vector<HostResult>& results);

}  // namespace sortie::launcher
