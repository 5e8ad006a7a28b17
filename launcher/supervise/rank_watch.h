// RankWatch: handles the progress that ranks of an attempt report. It feeds the watchdog, reports
// slow hosts, and when ranks hang writes their stacks to the run folder before it blames them. Used
// on the I/O thread only.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/asio/alarm.h"
#include "common/config/schema.h"
#include "common/wire/message.h"
#include "launcher/plan/plan.h"
#include "launcher/supervise/cause.h"
#include "launcher/watchdog/watchdog.h"

namespace sortie::launcher {

class Console;
class RunFolder;

class RankWatch {
 public:
  /// Maximum size of the stacks that are kept of one hang, over all ranks.
  static constexpr std::size_t kMaxStackBytes = 64u << 20;

  struct Parts {
    boost::asio::any_io_executor executor;
    Console& console;
    RunFolder& folder;
    std::uint32_t attempt = 1;
    std::function<bool()> ending;  // true while ranks are being stopped: no more checks
    std::function<void(std::size_t host, const wire::Message&)> send;
    std::function<void(Cause)> blame;
    std::function<void(const std::string& host)> on_slow = {};  // may be empty
  };

  /// All references must outlive the object.
  RankWatch(Parts parts, const config::JobConfig& job, const LaunchPlan& plan);

  /// Starts the periodic checks. Called when the ranks are being started.
  void begin();
  void rank_started(std::uint32_t rank);
  void rank_ended(std::uint32_t rank);
  /// Handles a heartbeat of a host.
  void heard(std::size_t host, const wire::Heartbeat& beat);
  /// Handles the stacks of a rank. The caller has checked that the rank belongs to the sending
  /// host.
  void take(wire::StackDump dump);

  /// Progress of the ranks, for the control socket: {"step": lowest, "highest_step", "told": number
  /// of ranks that report, "ranks": [{rank, step, section, sequence, standing_ms, silent_ms}]}. In
  /// large jobs "ranks" has only the ranks without progress for the longest time. null while no
  /// rank has reported.
  nlohmann::ordered_json status() const;

 private:
  void look_later();
  void look();
  void on_hang(Hang hang);
  void name_stragglers();
  void finish_hang();
  std::string folder_of_stacks() const;
  const std::string& host_name(std::uint32_t rank) const {
    return plan_.hosts[host_of_[rank]].name;
  }

  Parts parts_;
  const config::JobConfig& job_;
  const LaunchPlan& plan_;
  const std::vector<std::size_t> host_of_;  // by rank
  Watchdog watchdog_;
  Alarm look_timer_, dump_timer_;
  std::set<std::uint32_t> running_;
  std::optional<Hang> hang_;
  std::int64_t hang_at_ms_ = 0;      // when it was found, by the boot clock
  std::set<std::uint32_t> awaited_;  // ranks whose stacks have not arrived
  std::size_t stack_bytes_ = 0, stacks_kept_ = 0;
};

}  // namespace sortie::launcher
