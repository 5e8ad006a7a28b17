#include "launcher/supervise/rank_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "common/base/boot_clock.h"
#include "common/base/exit_code.h"
#include "launcher/console/console.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace {

using Clock = Watchdog::Clock;
using OrderedJson = nlohmann::ordered_json;

/// Extra time after dump_timeout. The runner reports a rank without stacks only at the end of
/// dump_timeout, and on a busy host that answer takes time.
constexpr std::chrono::milliseconds kAnswersLate{1000};

std::string_view section_text(std::uint8_t number) {
  const auto section = training::section_of(std::uint64_t{number});
  return section ? training::section_name(*section) : "?";
}

OrderedJson place_json(const wire::RankProgress& place) {
  return {{"rank", place.rank},
          {"step", place.step},
          {"section", section_text(place.section)},
          {"sequence", place.sequence},
          {"standing_ms", place.standing_ms},
          {"silent_ms", place.silent_ms}};
}

}  // namespace

RankWatch::RankWatch(Parts parts, const config::JobConfig& job, const LaunchPlan& plan)
    : parts_(std::move(parts)),
      job_(job),
      plan_(plan),
      host_of_(host_of_each_rank(plan)),
      watchdog_(job.watchdog, job.runner.heartbeat_interval, host_of_),
      look_timer_(parts_.executor),
      dump_timer_(parts_.executor) {}

void RankWatch::begin() {
  look_later();
}

void RankWatch::rank_started(std::uint32_t rank) {
  running_.insert(rank);
  watchdog_.rank_started(rank, Clock::now());
}

void RankWatch::rank_ended(std::uint32_t rank) {
  running_.erase(rank);
  watchdog_.rank_ended(rank);
  // The rank ended because of the hang, or because of the signal for its stacks (Go programs exit
  // on SIGQUIT). So its end is no separate cause.
  if (hang_) finish_hang();
}

void RankWatch::heard(std::size_t host, const wire::Heartbeat& beat) {
  watchdog_.heard(host, beat.ranks, Clock::now());
}

void RankWatch::look_later() {
  look_timer_.set(Watchdog::kTick, [this] { look(); });
}

void RankWatch::look() {
  if (parts_.ending()) return;
  name_stragglers();
  if (auto hang = watchdog_.look(Clock::now())) return on_hang(std::move(*hang));
  look_later();
}

void RankWatch::name_stragglers() {
  for (const Straggler& slow : watchdog_.take_stragglers(Clock::now())) {
    const std::string& name = plan_.hosts[slow.host].name;
    parts_.folder.event(JournalEvent::straggler, {{"host", name},
                                                  {"own_ms", slow.own_ms},
                                                  {"median_ms", slow.median_ms},
                                                  {"ratio", slow.ratio()}});
    parts_.console.message(fmt::format(
        "{}: its own work takes {:.1f} ms a step, {:.2f} times the median of all hosts; see what "
        "slows it down (watchdog.straggler_ratio)",
        name, slow.own_ms, slow.ratio()));
    if (parts_.on_slow) parts_.on_slow(name);
  }
}

std::string RankWatch::folder_of_stacks() const {
  return fmt::format("attempts/{}/stacks", parts_.attempt);
}

void RankWatch::on_hang(Hang hang) {
  const std::string text = hang_text(hang, host_name(hang.where.rank), plan_.world_size);
  OrderedJson fields = place_json(hang.where);
  fields["host"] = hang.host ? OrderedJson(plan_.hosts[*hang.host].name) : OrderedJson(nullptr);
  fields["limit_ms"] = hang.limit.count();
  const std::size_t kMostListed = 64;
  const auto some = [kMostListed](const std::vector<std::uint32_t>& ranks) {
    return std::vector<std::uint32_t>(
        ranks.begin(),
        ranks.begin() + static_cast<std::ptrdiff_t>(std::min(ranks.size(), kMostListed)));
  };
  fields["behind"] = some(hang.behind);
  fields["standing"] = some(hang.ranks);
  fields["standing_ranks"] = hang.ranks.size();
  fields["text"] = text;
  if (job_.watchdog.dump_timeout.count() > 0) fields["stacks"] = folder_of_stacks();
  parts_.folder.event(JournalEvent::hang, fields);
  parts_.console.error("hang: " + text);
  hang_ = std::move(hang);
  hang_at_ms_ = boot_ms();
  if (job_.watchdog.dump_timeout.count() == 0) return finish_hang();
  awaited_ = running_;
  std::map<std::size_t, wire::DumpStacks> orders;
  for (const std::uint32_t rank : running_) orders[host_of_[rank]].ranks.push_back(rank);
  for (auto& [index, order] : orders) {
    order.timeout_ms = static_cast<std::uint32_t>(job_.watchdog.dump_timeout.count());
    parts_.send(index, order);
  }
  dump_timer_.set(job_.watchdog.dump_timeout + kAnswersLate, [this] { finish_hang(); });
}

void RankWatch::take(wire::StackDump dump) {
  if (awaited_.erase(dump.rank) == 0) return;
  stack_bytes_ += dump.text.size();
  if (stack_bytes_ <= kMaxStackBytes && !dump.text.empty()) {
    ++stacks_kept_;
    parts_.folder.keep(fmt::format("{}/rank-{}.txt", folder_of_stacks(), dump.rank),
                       fmt::format("rank {}, {}\n\n{}", dump.rank, dump.how, dump.text));
  }
  if (awaited_.empty()) finish_hang();
}

/// Blames the hang, once all stacks have arrived or their time is over. It is dated by its
/// detection: ranks that end while stacks are collected do so because of it.
void RankWatch::finish_hang() {
  if (!hang_) return;
  dump_timer_.cancel();
  const Hang hang = *std::exchange(hang_, std::nullopt);
  awaited_.clear();
  if (parts_.ending()) return;
  Cause cause;
  cause.what = Cause::What::hang;
  if (hang.host) cause.host = plan_.hosts[*hang.host].name;
  if (hang.behind.size() == 1) cause.rank = hang.where.rank;
  cause.at_ms = hang_at_ms_;
  cause.exit_code = kExitHang;
  cause.message = hang_text(hang, host_name(hang.where.rank), plan_.world_size);
  if (stacks_kept_ > 0)
    cause.message +=
        fmt::format("\n  stacks of {} rank{}: {}", stacks_kept_, stacks_kept_ == 1 ? "" : "s",
                    (parts_.folder.path() / folder_of_stacks()).string());
  parts_.blame(std::move(cause));
}

nlohmann::ordered_json RankWatch::status() const {
  constexpr std::size_t kMostShown = 256;
  std::vector<const wire::RankProgress*> places;
  for (const std::uint32_t rank : running_)
    if (const wire::RankProgress* place = watchdog_.place(rank)) places.push_back(place);
  if (places.empty()) return nullptr;
  const auto step = [](const wire::RankProgress* place) { return place->step; };
  OrderedJson json = {{"step", std::ranges::min(places, {}, step)->step},
                      {"highest_step", std::ranges::max(places, {}, step)->step},
                      {"told", places.size()}};
  if (places.size() > kMostShown) {
    std::ranges::stable_sort(places, std::ranges::greater{},
                             [](const wire::RankProgress* place) { return place->standing_ms; });
    places.resize(kMostShown);
    std::ranges::sort(places, {}, [](const wire::RankProgress* place) { return place->rank; });
  }
  json["ranks"] = OrderedJson::array();
  for (const wire::RankProgress* place : places) json["ranks"].push_back(place_json(*place));
  return json;
}

}  // namespace sortie::launcher
