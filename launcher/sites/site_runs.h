// SiteRuns: a run over several sites: on each of them a job of its own (RunLoop) with its own
// attempts, world, recovery and folder, and between them the coordinator of their rounds. All state
// lives on the I/O thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/run/run_loop.h"
#include "launcher/sites/forward_router.h"
#include "launcher/sites/outer_service.h"
#include "launcher/sites/site_plan.h"

namespace sortie::launcher {

/// A site with what is kept of it: made for a new run, or read back for one that is adopted.
struct SiteOfRun {
  PlannedSite planned;
  RunFolder folder;
  /// What its loop has to know of attempts before; `attempt` is filled in by SiteRuns.
  std::function<void(RunLoop::Parts&)> adopt = {};
  std::optional<Verdict> ended = {};  // before this supervisor
  bool removed = false;               // by `sortie sites remove`
};

class SiteRuns final : public SupervisedRun {
 public:
  struct Parts {
    boost::asio::any_io_executor executor;
    Console& console;
    RunFolder& folder;  // of the run as a whole
    const config::JobConfig& job;
    std::vector<SiteOfRun> sites;
    unsigned epoch = 1;
    bool adopts = false;
    /// What all loops share: transport, binary, planning, cordoning; with that console and folder.
    std::function<RunLoop::Parts(Console&, RunFolder&)> loop_parts = {};
    /// Of a site that is added to the living run: its hosts as the plan has them.
    std::function<Result<SiteOfRun>(const std::string& name, const std::string& hosts,
                                    std::int64_t index)>
        plan_site = {};
    /// The replanning of a site (RunLoop::Replan).
    std::function<RunLoop::Replan(const SitePlace&)> replan = {};
    /// Called once, when every site has started all its ranks, or has failed.
    std::function<void()> on_started = {};
  };

  explicit SiteRuns(Parts parts);
  ~SiteRuns() override;

  /// The coordinator with its log. Before run().
  Result<> open();

  boost::asio::awaitable<Verdict> run() override;
  void interrupt(int signal_number) override;
  void stop(bool now) override;
  const char* state() const override;
  std::uint32_t attempt() const override { return 1; }
  bool has_host(const std::string& name) const override;
  nlohmann::ordered_json progress() const override { return nullptr; }
  Result<nlohmann::ordered_json> sites_order(const nlohmann::json& order) override;

 private:
  struct Site {
    SiteOfRun what;
    std::unique_ptr<Console> console;
    std::unique_ptr<RunLoop> loop;
    std::optional<Verdict> verdict;  // how it ended
    bool started = false, stopped = false;
  };

  void start(Site& site);
  boost::asio::awaitable<void> run_site(Site& site);
  void site_ended(Site& site);
  void note_started();
  void on_question(Site& site, std::uint32_t rank, const nlohmann::json& event);
  void on_note(const OuterCoordinator::Note& note);
  void on_end(const OuterCoordinator::End& end);
  /// The end that a person asked for; the first one counts.
  void begin_stop(int signal_number, std::string reason);
  Verdict verdict_of_all() const;
  Site* find(const std::string& name);
  nlohmann::ordered_json site_list() const;
  Result<> add(const std::string& name, const std::string& hosts);
  Result<> remove(const std::string& name);
  Result<> write_names();

  Parts parts_;
  std::list<Site> sites_;  // in config order; loops refer to them
  std::unique_ptr<OuterService> outer_;
  ForwardRouter forwards_;
  std::size_t running_ = 0;
  bool started_ = false;
  std::optional<OuterCoordinator::End> too_few_;
  std::optional<Verdict> stopped_;  // by a person, the first time
  std::uint64_t refused_ = 0;       // questions
  boost::asio::steady_timer changed_;
};

}  // namespace sortie::launcher
