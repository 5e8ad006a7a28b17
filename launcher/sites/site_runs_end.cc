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
  if (verdict.exit_code == 0 || site.stopped)
    outer_->remove_site(name);
  else
    outer_->site_down(name, /*for_good=*/true);
  if (!site.stopped && !stopped_ && !too_few_ && verdict.exit_code != 0 && !verdict.adopted &&
      running_ > 0)
    parts_.console.message(
        fmt::format("site {} has ended with exit code {} and is not restarted; the others continue",
                    name, verdict.exit_code));
  site.started = true;  // on_started must not wait for it
  note_started();
  changed_.cancel();
}

void SiteRuns::on_end(const OuterCoordinator::End& end) {
  if (too_few_ || stopped_) return;
  too_few_ = end;
  parts_.console.error(end.text);
  for (Site& site : sites_)
    if (site.loop && !site.verdict) site.loop->stop(false, "the end of the run: " + end.text);
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
  if (too_few_) {
    all.exit_code = too_few_->exit_code;
    all.text = too_few_->text;
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
