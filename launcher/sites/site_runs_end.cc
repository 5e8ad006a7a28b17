// SiteRuns: how sites and the run end.
#include <fmt/format.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "common/base/process_status.h"
#include "launcher/sites/site_runs.h"

namespace sortie::launcher {

void SiteRuns::site_ended(Site& site) {
  const std::string& name = site.what.planned.place.name;
  const Verdict& verdict = *site.verdict;
  if (!verdict.adopted)
    parts_.folder.event(JournalEvent::site, {{"site", name},
                                             {"state", "ended"},
                                             {"exit_code", verdict.exit_code},
                                             {"text", verdict.text}});
  site.what.folder.finish(verdict.exit_code);
  if (!verdict.text.empty() && !verdict.shown && !site.stopped) site.console->error(verdict.text);
  if (fails_start(site)) {
    const std::string why = fmt::format("site {} was not started", name);
    parts_.console.message(why + ", and the run does not begin without it");
    end_early({verdict.exit_code, fmt::format("site {}: {}", name, verdict.text)}, why);
  }
  if (verdict.exit_code == 0 || site.stopped)
    outer_->remove_site(name);
  else
    outer_->site_down(name, /*for_good=*/true);
  if (!site.stopped && !stopped_ && !early_end_ && verdict.exit_code != 0 && !verdict.adopted &&
      running_ > 0)
    parts_.console.message(
        fmt::format("site {0} has ended with exit code {1} and is not restarted; the others "
                    "continue; after `sortie sites remove {0}` its exit code does not count",
                    name, verdict.exit_code));
  note_started();
  changed_.cancel();
}

/// Whether the start of the run has failed with this site, which has ended: the run begins with all
/// of its sites or not at all, as a job with all of its hosts. A run that was adopted has begun.
bool SiteRuns::fails_start(const Site& site) const {
  const SitePlace& place = site.what.planned.place;
  const bool configured = place.index < place.count;
  const bool ends_anyway = stopped_ || early_end_ || site.stopped || site.verdict->adopted;
  return !started_ && !parts_.adopts && !site.started && configured && !ends_anyway &&
         site.verdict->exit_code != 0;
}

void SiteRuns::on_end(const OuterCoordinator::End& end) {
  if (early_end_ || stopped_) return;
  parts_.console.error(end.text);
  end_early(end, end.text);
}

/// Stops all sites, because of `why`. The run then has this end.
void SiteRuns::end_early(OuterCoordinator::End end, const std::string& why) {
  early_end_ = std::move(end);
  outer_->stop();
  for (Site& site : sites_)
    if (site.loop && !site.verdict) site.loop->stop(false, "the end of the run: " + why);
}

void SiteRuns::begin_stop(int signal_number, std::string reason) {
  if (stopped_) return;
  stopped_ = Verdict();
  stopped_->exit_code = 128 + signal_number;
  stopped_->text = std::move(reason);
  parts_.folder.event(JournalEvent::stop, {{"reason", stopped_->text}});
  if (outer_) outer_->stop();
}

void SiteRuns::interrupt(int signal_number) {
  begin_stop(signal_number, "interrupted by " + signal_name(signal_number));
  for (Site& site : sites_)
    if (site.loop && !site.verdict) site.loop->interrupt(signal_number);
}

void SiteRuns::stop(bool now) {
  begin_stop(SIGTERM, "stopped by `sortie stop`");
  for (Site& site : sites_)
    if (site.loop && !site.verdict) site.loop->stop(now);
}

/// Exit code 0 if no site has failed for good, else the code of the first that has.
Verdict SiteRuns::verdict_of_all() const {
  Verdict all;
  for (const Site& site : sites_)
    if (site.verdict && site.verdict->adopted) return *site.verdict;
  if (stopped_) return *stopped_;
  if (early_end_) {
    all.exit_code = early_end_->exit_code;
    all.text = early_end_->text;
    all.shown = true;
    return all;
  }
  std::string others;
  for (const Site& site : sites_) {
    if (!site.verdict || site.stopped) continue;
    all.ended_after += site.verdict->ended_after;  // number of ranks
    if (site.verdict->exit_code == 0) continue;
    const std::string text = fmt::format("site {}: {}", site.what.planned.place.name,
                                         site.verdict->text.empty()
                                             ? fmt::format("exit code {}", site.verdict->exit_code)
                                             : site.verdict->text);
    if (all.exit_code == 0) {
      all.exit_code = site.verdict->exit_code;
      all.text = text;
      all.shown = true;
    } else {
      others += "\n" + text;
    }
  }
  all.text += others;
  return all;
}

}  // namespace sortie::launcher
