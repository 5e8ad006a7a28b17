// RankWatch: what an attempt does with the progress of its ranks: it feeds the watchdog, names slow
// hosts, and when ranks hang it has their stacks written down before it blames them. Lives on the
// I/O thread.
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
  /// Stacks that are kept of one hang, all ranks together.
  static constexpr std::size_t kMaxStackBytes = 64u << 20;

  struct Parts {
    boost::asio::any_io_executor executor;
    Console& console;
    RunFolder& folder;
    std::uint32_t attempt = 1;
    std::function<bool()> ending;  // nothing is judged any more: the ranks are being stopped
    std::function<void(std::size_t host, const wire::Message&)> send;
    std::function<void(Cause)> blame;
    std::function<void(const std::string& host)> on_slow = {};  // it was named; may be empty
  };

  /// All references must outlive it.
  RankWatch(Parts parts, const config::JobConfig& job, const LaunchPlan& plan);

  /// The ranks are being started: from now on they are looked at.
  void begin();
  void rank_started(std::uint32_t rank);
  void rank_ended(std::uint32_t rank);
  /// A heartbeat of a host.
  void heard(std::size_t host, const wire::Heartbeat& beat);
  /// Stacks of a rank; the caller has seen to it that the rank is that host's.
  void take(wire::StackDump dump);

  /// For the control socket: where ranks are. {"step": lowest, "highest_step", "told": ranks that
  /// tell, "ranks": [{rank, step, section, sequence, standing_ms, silent_ms}]}: of large jobs those
  /// that have stood still for longest; null while no rank has told anything.
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
  const std::vector<std::size_t> host_of_;  // of each rank
  Watchdog watchdog_;
  boost::asio::steady_timer look_timer_, dump_timer_;
  std::set<std::uint32_t> running_;
  std::optional<Hang> hang_;
  std::set<std::uint32_t> awaited_;  // ranks whose stacks have not come
  std::size_t stack_bytes_ = 0, stacks_kept_ = 0;
};

}  // namespace sortie::launcher
