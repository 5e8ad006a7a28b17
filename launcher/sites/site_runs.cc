#include "launcher/sites/site_runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>

#include "common/asio/spawn.h"
#include "common/asio/token.h"
#include "common/config/outer.h"
#include "launcher/run/attempt_folder.h"

namespace sortie::launcher {
namespace asio = boost::asio;

SiteRuns::SiteRuns(Parts parts)
    : parts_(std::move(parts)),
      forwards_([this](const std::string& host, const wire::Message& message) {
        return std::ranges::any_of(sites_, [&](const Site& site) {
          return site.loop && site.loop->send_forward(host, message);
        });
      }),
      changed_(parts_.executor),
      file_calls_(parts_.executor) {
  for (SiteOfRun& site : parts_.sites) sites_.push_back({std::move(site), {}, {}, {}});
  parts_.sites.clear();
}

SiteRuns::~SiteRuns() {
  if (outer_) outer_->close();
}

Result<> SiteRuns::open() {
  OuterCoordinator::Settings settings;
  // Of sites that were added later the log has those that have joined; the others follow below.
  std::int64_t ranks = 0;  // of one site; all of them have the same batch
  for (const Site& site : sites_) {
    if (site.what.planned.place.index >= site.what.planned.place.count) continue;
    settings.sites.push_back(site.what.planned.place.name);
    if (ranks == 0)
      ranks = site.what.configured_ranks > 0 ? site.what.configured_ranks
                                             : site.what.planned.plan.world_size;
  }
  const auto count = static_cast<std::int64_t>(settings.sites.size());
  settings.outer = config::resolve_outer(parts_.job, count);
  if (ranks > 0) settings.global_batch_size = batch_of_sites(parts_.job.topology, count, ranks);
  OuterService::Parts parts{
      parts_.executor,
      std::move(settings),
      [this](const std::string& name, std::uint32_t rank, std::string line) {
        Site* const site = find(name);
        if (site && site->loop) site->loop->answer(rank, std::move(line));
      },
      [this](const OuterCoordinator::Note& note) { on_note(note); },
      [this](const OuterCoordinator::End& end) { on_end(end); },
      [this](const Error& error) {
        parts_.console.error(
            fmt::format("{}; no round is committed until it can be written", error.message));
      }};
  SORTIE_ASSIGN_OR_RETURN(outer_,
                          OuterService::open(parts_.folder.path(), parts_.epoch, std::move(parts)));
  const auto known = outer_->coordinator().sites();
  for (const Site& site : sites_) {
    const std::string& name = site.what.planned.place.name;
    if (std::ranges::find(known, name, &OuterCoordinator::SiteState::name) == known.end())
      outer_->add_site(name);
  }
  return parts_.folder.write(kSiteNamesFile, names());
}

/// Content of kSiteNamesFile.
std::string SiteRuns::names() const {
  std::string names;
  for (const Site& site : sites_) names += site.what.planned.place.name + "\n";
  return names;
}

SiteRuns::Site* SiteRuns::find(const std::string& name) {
  const auto it = std::ranges::find(sites_, name, [](const Site& site) -> const std::string& {
    return site.what.planned.place.name;
  });
  return it == sites_.end() ? nullptr : &*it;
}

asio::awaitable<Verdict> SiteRuns::run() {
  nlohmann::ordered_json names = nlohmann::ordered_json::array();
  std::size_t hosts = 0, ranks = 0;
  for (const Site& site : sites_) {
    names.push_back(site.what.planned.place.name);
    hosts += site.what.planned.plan.hosts.size();
    ranks += site.what.planned.plan.world_size;
  }
  if (parts_.adopts)
    parts_.folder.event(JournalEvent::adopted, {{"epoch", parts_.epoch}});
  else
    parts_.folder.event(JournalEvent::begin,
                        {{"hosts", hosts}, {"ranks", ranks}, {"sites", names}});
  for (Site& site : sites_) start(site);
  while (running_ > 0) {
    changed_.expires_at(std::chrono::steady_clock::time_point::max());
    co_await changed_.async_wait(kToken);
  }
  outer_->close();
  Verdict verdict = verdict_of_all();
  parts_.folder.event(JournalEvent::end, {{"exit_code", verdict.exit_code},
                                          {"text", verdict.text},
                                          {"ended_after", verdict.ended_after}});
  co_return verdict;
}

void SiteRuns::start(Site& site) {
  const std::string& name = site.what.planned.place.name;
  if (site.what.removed || site.what.ended) {
    site.stopped = site.what.removed;
    site.verdict = site.what.ended.value_or(Verdict());
    if (site.stopped || site.verdict->exit_code == 0)
      outer_->remove_site(name);
    else
      outer_->site_down(name, /*for_good=*/true);
    return;
  }
  const bool bottom = &site == &sites_.front();
  site.console = std::make_unique<Console>(parts_.console, name, bottom);
  RunLoop::Parts parts = parts_.loop_parts(*site.console, site.what.folder);
  parts.replan = parts_.replan(site.what.planned.place);
  parts.hosts = site.what.planned.hosts;
  parts.spares = site.what.planned.spares;
  parts.sites = site.what.planned.place.count;
  parts.attempt.epoch = parts_.epoch;
  parts.attempt.on_outer = [this, &site](std::uint32_t rank, const nlohmann::json& event) {
    on_question(site, rank, event);
  };
  parts.attempt.on_forward = [this](const std::string& host, const wire::Message& message) {
    forwards_.take(host, message);
  };
  parts.attempt.on_forwards_end = [this](const std::string& host) { forwards_.host_gone(host); };
  parts.attempt.on_started = [this, &site] {
    site.started = true;
    note_started();
  };
  parts.on_attempt = [this, name](std::uint32_t attempt) { outer_->site_up(name, attempt); };
  parts.on_attempt_end = [this, name] { outer_->site_down(name, false); };
  if (site.what.adopt) site.what.adopt(parts);
  // Between two attempts the site has no ranks to wait for.
  if (parts.between_attempts) outer_->site_down(name, false);
  site.loop = std::make_unique<RunLoop>(std::move(parts), parts_.job, site.what.planned.plan);
  ++running_;
  spawn(parts_.executor, run_site(site));
}

asio::awaitable<void> SiteRuns::run_site(Site& site) {
  parts_.folder.event(JournalEvent::site,
                      {{"site", site.what.planned.place.name}, {"state", "begun"}});
  const auto loop = site.loop.get();
  Verdict verdict = co_await loop->run();
  site.verdict = std::move(verdict);
  --running_;
  site_ended(site);
}

void SiteRuns::note_started() {
  if (started_ || early_end_) return;
  const bool all = std::ranges::all_of(
      sites_, [](const Site& site) { return site.started || site.stopped || site.verdict; });
  const bool any = std::ranges::any_of(sites_, [](const Site& site) { return !site.verdict; });
  if (!all || !any) return;
  started_ = true;
  std::size_t hosts = 0, ranks = 0;
  for (const Site& site : sites_) {
    hosts += site.what.planned.plan.hosts.size();
    ranks += site.what.planned.plan.world_size;
  }
  parts_.folder.event(JournalEvent::started, {{"ranks", ranks}, {"hosts", hosts}});
  if (!parts_.on_started) return;
  // Each site's folder has a thread of its own. The folder of the run outlives them.
  const auto unwritten = std::make_shared<std::atomic<std::size_t>>(sites_.size());
  for (Site& site : sites_)
    site.what.folder.when_written([unwritten, &folder = parts_.folder, done = parts_.on_started] {
      if (unwritten->fetch_sub(1) == 1) folder.when_written(done);
    });
}

void SiteRuns::on_question(Site& site, std::uint32_t rank, const nlohmann::json& event) {
  const auto taken = outer_->question(site.what.planned.place.name, rank, event);
  if (taken || ++refused_ > 20) return;
  parts_.folder.event(
      JournalEvent::event_refused,
      {{"site", site.what.planned.place.name}, {"rank", rank}, {"why", taken.error().message}});
  if (refused_ == 1)
    site.console->error(
        fmt::format("rank {}: a question about rounds is not answered, and others "
                    "like it: {}",
                    rank, taken.error().message));
}

void SiteRuns::on_note(const OuterCoordinator::Note& note) {
  using Kind = OuterCoordinator::Note::Kind;
  nlohmann::ordered_json fields = {{"what", outer_note_name(note.kind)}, {"round", note.round}};
  if (!note.site.empty()) fields["site"] = note.site;
  if (note.epoch > 0) {
    fields["fragment"] = note.fragment;
    fields["epoch"] = note.epoch;
  }
  if (!note.members.empty()) fields["sites"] = note.members;
  if (note.kind == Kind::committed) {
    fields["seconds"] = note.seconds;
    fields["waited"] = note.waited;
  }
  if (note.steps_in_vain > 0) fields["steps_in_vain"] = note.steps_in_vain;
  if (!note.text.empty()) fields["text"] = note.text;
  parts_.folder.event(JournalEvent::round, fields);
  Console& console = parts_.console;
  switch (note.kind) {
    case Kind::begun:
      console.message(fmt::format("rounds continue from round {}, with {}{}{}", note.round,
                                  fmt::join(note.members, ", "), note.text.empty() ? "" : ": ",
                                  note.text));
      break;
    case Kind::joined:
      if (!note.members.empty())
        console.message(
            fmt::format("site {} joins at round {}, with the weights of {}{}", note.site,
                        note.round, note.members.front(),
                        note.steps_in_vain > 0
                            ? fmt::format("; it had done {} step{} in vain", note.steps_in_vain,
                                          note.steps_in_vain == 1 ? "" : "s")
                            : ""));
      break;
    case Kind::aborted:
      console.message(
          fmt::format("round {}: an exchange was called off: {}", note.round, note.text));
      break;
    case Kind::excluded:
      console.message(
          fmt::format("round {} continues without site {}, which is late", note.round, note.site));
      break;
    case Kind::differs:
      console.error(fmt::format("round {}: {} came to another mean than most sites", note.round,
                                fmt::join(note.members, ", ")));
      break;
    case Kind::paused:
      if (stopped_ || early_end_) break;  // the run ends, so no site waits
      console.message(
          fmt::format("{}; the others wait for at most {:.0f} s", note.text, note.seconds));
      break;
    case Kind::resumed:
      console.message("enough sites are connected again");
      break;
    case Kind::committed:
      break;
  }
}

const char* SiteRuns::state() const {
  return stopped_ || early_end_ ? "stopping" : started_ ? "running" : "starting";
}

std::vector<const RunFolder*> SiteRuns::site_folders() const {
  std::vector<const RunFolder*> folders;
  for (const Site& site : sites_) folders.push_back(&site.what.folder);
  return folders;
}

bool SiteRuns::has_host(const std::string& name) const {
  return std::ranges::any_of(
      sites_, [&](const Site& site) { return site.loop && site.loop->has_host(name); });
}

}  // namespace sortie::launcher
