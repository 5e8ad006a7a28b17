// SupervisedRun: interface of what a supervisor runs: one job (RunLoop), or one job on each of
// several sites (sites/site_runs.h). Used on the I/O thread only.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace sortie::launcher {

class RunFolder;
struct Verdict;

class SupervisedRun {
 public:
  virtual ~SupervisedRun() = default;

  /// Runs to the end.
  virtual boost::asio::awaitable<Verdict> run() = 0;

  /// Handles Ctrl-C, TERM or HUP: no further attempt starts. The first call stops ranks with the
  /// grace period, the next one kills them at once. Between attempts it ends the run.
  virtual void interrupt(int signal_number) = 0;
  /// Handles `sortie stop`: like interrupt(), with the grace period or at once (`now`). The run
  /// ends as after SIGTERM.
  virtual void stop(bool now) = 0;
  /// "starting", "running", "stopping", or between attempts "restarting".
  virtual const char* state() const = 0;
  virtual std::uint32_t attempt() const = 0;
  /// Whether the current or next attempt uses that host.
  virtual bool has_host(const std::string& name) const = 0;
  /// Progress of the ranks of the current attempt (RankWatch::status); null between attempts.
  virtual nlohmann::ordered_json progress() const = 0;

  /// Run folders of the sites, in config order; empty for a run without sites.
  virtual std::vector<const RunFolder*> site_folders() const { return {}; }

  /// Executes an order of `sortie sites` and returns the fields of the answer. ErrorCode::usage if
  /// the run has no sites; ErrorCode::timeout if the disk does not answer.
  virtual boost::asio::awaitable<Result<nlohmann::ordered_json>> sites_order(nlohmann::json order);
};

}  // namespace sortie::launcher
