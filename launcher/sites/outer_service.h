// OuterService: the coordinator of a living run: its clock, its log, and the way of questions and
// answers. Lives on the I/O thread.
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

#include "launcher/sites/coordinator.h"
#include "launcher/sites/outer_log.h"

namespace sortie::launcher {

class OuterService {
 public:
  struct Parts {
    boost::asio::any_io_executor executor;
    OuterCoordinator::Settings settings;
    /// A line for a rank of a site.
    std::function<void(const std::string& site, std::uint32_t rank, std::string line)> say;
    std::function<void(const OuterCoordinator::Note&)> on_note;
    /// Too few sites are left; the last call.
    std::function<void(const OuterCoordinator::End&)> on_end;
    /// The log can not be written: no round is committed until it can. Told once a minute.
    std::function<void(const Error&)> on_trouble;
  };
  /// Errors: those of OuterLog::open() and OuterCoordinator::restore().
  static Result<std::unique_ptr<OuterService>> open(const std::filesystem::path& run,
                                                    unsigned epoch, Parts parts);

  void site_up(const std::string& site, std::uint32_t attempt);
  void site_down(const std::string& site, bool for_good);
  void add_site(const std::string& site);
  void remove_site(const std::string& site);
  void stop();
  /// An event of type "outer" of a rank. Error: it is no question; nobody is answered.
  Result<> question(const std::string& site, std::uint32_t rank, const nlohmann::json& event);

  const OuterCoordinator& coordinator() const { return coordinator_; }
  /// The run is over: nothing is said any more.
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
  std::deque<OuterCoordinator::Step>
      waiting_;  // to be said; the first one's lines are being written
  bool writing_ = false, closed_ = false;
  std::optional<std::chrono::steady_clock::time_point> trouble_;
  boost::asio::steady_timer timer_, retry_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace sortie::launcher
