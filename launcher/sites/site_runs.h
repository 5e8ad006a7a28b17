// SiteRuns: a run over several sites. Each site has a separate job (RunLoop) with its own attempts,
// world, recovery and folder; a coordinator connects their rounds. All state lives on the I/O
// thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/asio/file_calls.h"
#include "launcher/run/run_loop.h"
#include "launcher/sites/forward_router.h"
#include "launcher/sites/outer_service.h"
#include "launcher/sites/site_plan.h"

namespace sortie::launcher {

/// A site and its state: created for a new run, or read from its folder for an adopted run.
struct SiteOfRun {
  PlannedSite planned;
  RunFolder folder;
  /// Adds the state of earlier attempts to the parameters of the site's loop; SiteRuns sets the
  /// callbacks of `attempt`.
  std::function<void(RunLoop::Parts&)> adopt = {};
  std::optional<Verdict> ended = {};  // set if it ended under an earlier supervisor
  bool removed = false;               // by `sortie sites remove`
  /// Ranks of its first attempt; 0 = those of `planned`. A later attempt may have fewer, with the
  /// same batch.
  std::uint32_t configured_ranks = 0;
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
    /// Returns what all loops share (transport, binary, planning, cordoning), with the given
    /// console and folder.
    std::function<RunLoop::Parts(Console&, RunFolder&)> loop_parts = {};
    /// Plans a site that is added to the active run. `hosts`: host lines. Called on a thread of its
    /// own: it may block.
    std::function<Result<SiteOfRun>(const std::string& name, const std::string& hosts,
                                    std::int64_t index)>
        plan_site = {};
    /// Returns the replan function of a site (RunLoop::Replan).
    std::function<RunLoop::Replan(const SitePlace&)> replan = {};
    /// Called once, on the thread of `folder`, when every site has started all of its ranks and the
    /// folders say so. Sites that were adopted, added or removed may have ended instead.
    std::function<void()> on_started = {};
  };

  explicit SiteRuns(Parts parts);
  ~SiteRuns() override;

  /// Creates the coordinator with its log. Must be called before run().
  Result<> open();

  boost::asio::awaitable<Verdict> run() override;
  void interrupt(int signal_number) override;
  void stop(bool now) override;
  const char* state() const override;
  std::uint32_t attempt() const override { return 1; }
  bool has_host(const std::string& name) const override;
  nlohmann::ordered_json progress() const override { return nullptr; }
  std::vector<const RunFolder*> site_folders() const override;
  boost::asio::awaitable<Result<nlohmann::ordered_json>> sites_order(nlohmann::json order) override;

 private:
  struct Site {
    SiteOfRun what;
    std::unique_ptr<Console> console;
    std::unique_ptr<RunLoop> loop;
    std::optional<Verdict> verdict;  // set when it has ended
    bool started = false;            // all of its ranks, at least once
    bool stopped = false;            // by `sortie sites remove`
  };

  void start(Site& site);
  boost::asio::awaitable<void> run_site(Site& site);
  void site_ended(Site& site);
  bool fails_start(const Site& site) const;
  void note_started();
  void on_question(Site& site, std::uint32_t rank, const nlohmann::json& event);
  void on_note(const OuterCoordinator::Note& note);
  void on_end(const OuterCoordinator::End& end);
  void end_early(OuterCoordinator::End end, const std::string& why);
  /// Records the end requested by the user. Only the first call counts.
  void begin_stop(int signal_number, std::string reason);
  Verdict verdict_of_all() const;
  Site* find(const std::string& name);
  nlohmann::ordered_json site_list() const;
  boost::asio::awaitable<Result<>> add(std::string name, std::string hosts);
  boost::asio::awaitable<Result<>> add_planned(std::string name, std::string hosts);
  Result<> may_add(const std::string& name);
  boost::asio::awaitable<Result<>> remove(std::string name);
  std::string names() const;

  Parts parts_;
  std::list<Site> sites_;  // in config order; loops and file_calls_ hold references to them
  std::unique_ptr<OuterService> outer_;
  ForwardRouter forwards_;
  std::size_t running_ = 0;
  bool started_ = false, adding_ = false;
  std::optional<OuterCoordinator::End> early_end_;  // too few sites, or one was not started
  std::optional<Verdict> stopped_;                  // set by the first request of the user
  std::uint64_t refused_ = 0;                       // number of refused questions
  boost::asio::steady_timer changed_;
  FileCalls file_calls_;  // of `sortie sites`
};

}  // namespace sortie::launcher
