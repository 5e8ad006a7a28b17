// OuterService: the coordinator of an active run: connects OuterCoordinator with the clock, the
// log, and the ranks that ask questions. Used on the I/O thread only.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "common/asio/alarm.h"
#include "launcher/sites/coordinator.h"
#include "launcher/sites/outer_log.h"

namespace sortie::launcher {

class OuterService {
 public:
  struct Parts {
    boost::asio::any_io_executor executor;
    OuterCoordinator::Settings settings;
    /// Sends a line to a rank of a site.
    std::function<void(const std::string& site, std::uint32_t rank, std::string line)> say;
    std::function<void(const OuterCoordinator::Note&)> on_note;
    /// Called last, if too few sites are left.
    std::function<void(const OuterCoordinator::End&)> on_end;
    /// The log can not be written. No round is committed until it can. Called at most once a
    /// minute.
    std::function<void(const Error&)> on_trouble;
  };
  /// Opens the log and restores the coordinator. Errors of OuterLog::open() and
  /// OuterCoordinator::restore().
  static Result<std::unique_ptr<OuterService>> open(const std::filesystem::path& run,
                                                    unsigned epoch, Parts parts);

  void site_up(const std::string& site, std::uint32_t attempt);
  void site_down(const std::string& site, bool for_good);
  void add_site(const std::string& site);
  void remove_site(const std::string& site);
  void stop();
  /// Handles an event of type "outer" of a rank. Error: it is not a valid question and gets no
  /// answer.
  Result<> question(const std::string& site, std::uint32_t rank, const nlohmann::json& event);

  const OuterCoordinator& coordinator() const { return coordinator_; }
  /// Ends the service with the run: no further callbacks.
  void close();

 private:
  OuterService(Parts parts, OuterLog log);
  void take(OuterCoordinator::Step step);
  void write_next();
  void deliver(const OuterCoordinator::Step& step);
  void set_timer();
  OuterCoordinator::Time now() const;

  Parts parts_;
  OuterLog log_;
  OuterCoordinator coordinator_;
  // Steps to deliver. The lines of the first one are being written.
  std::deque<OuterCoordinator::Step> waiting_;
  bool writing_ = false, closed_ = false;
  std::optional<std::chrono::steady_clock::time_point> trouble_;
  Alarm timer_, retry_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace sortie::launcher
