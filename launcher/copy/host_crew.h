// HostCrew: the hosts of a command that copies. Connects to all, runs one coroutine for each, keeps
// every connection until all are done, and says goodbye. A host that fails concerns no other one.
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
  std::optional<Error> error;  // of what kind, and why
  wire::FilesDone done;
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

  /// Does `first` (once, before any connection; an error ends everything), then `work` for each
  /// host; `tick` five times a second. Ctrl-C, TERM and HUP end it: ErrorCode::interrupted for
  /// every host that was not done. Error: nothing was done at all.
  Result<> run(std::function<boost::asio::awaitable<Result<>>()> first, Work work,
               std::function<void()> tick);
  const std::vector<HostResult>& results() const { return results_; }
  /// 130, 143 or 129 after a signal, else nothing.
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
  TaskGroup hosts_;  // that are being served
  std::optional<Error> failure_;
  std::optional<int> interrupted_;
};

/// One line per distinct error, hosts folded ("h[03-05]: connect: ..."), on stderr; the exit code
/// of the first one, or 0.
int print_host_errors(const std::vector<HostResult>& results);

}  // namespace sortie::launcher
