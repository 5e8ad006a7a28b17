// SupervisedRun: what a supervisor runs, and what others may ask of it meanwhile: one job
// (RunLoop), or a job on each of several sites (sites/site_runs.h). Lives on the I/O thread.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/base/result.h"

namespace sortie::launcher {

struct Verdict;

class SupervisedRun {
 public:
  virtual ~SupervisedRun() = default;

  /// From its beginning to its end.
  virtual boost::asio::awaitable<Verdict> run() = 0;

  /// Ctrl-C, TERM or HUP: no further attempt. The first call stops ranks with the grace, the next
  /// one at once; between attempts it ends the run.
  virtual void interrupt(int signal_number) = 0;
  /// `sortie stop`: the same with the grace, or at once; the run then ends as after TERM.
  virtual void stop(bool now) = 0;
  /// "starting", "running", "stopping", or between attempts "restarting".
  virtual const char* state() const = 0;
  virtual std::uint32_t attempt() const = 0;
  /// Whether the current attempt, or the next one, is on that host.
  virtual bool has_host(const std::string& name) const = 0;
  /// Where the ranks of the current attempt are (RankWatch::status); null between attempts.
  virtual nlohmann::ordered_json progress() const = 0;

  /// `sortie sites`: the members of the answer. ErrorCode::usage where there are no sites.
  virtual Result<nlohmann::ordered_json> sites_order(const nlohmann::json& order);
};

}  // namespace sortie::launcher
