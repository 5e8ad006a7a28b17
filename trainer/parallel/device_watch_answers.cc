// What a watch asks the other ranks, and what it answers them.
#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "common/base/log.h"
#include "trainer/parallel/device_watch.h"
#include "trainer/parallel/rank_set.h"

namespace sortie::trainer {
namespace {

using WatchClock = std::chrono::steady_clock;
using Place = WaitAnswer::Place;
/// A watch that does not release its lock for so long is in a call of the driver.
constexpr std::chrono::seconds kBlocked{1};
constexpr std::chrono::milliseconds kBetweenTries{5};

}  // namespace

std::string DeviceWatch::ask_others(const std::vector<int>& members,
                                    const CollectiveName& collective, bool failed) {
  if (!rank_.place.inquiry) return {};
  const WaitQuestion question{rank_.rank, collective, failed};
  const WaitAnswer mine = answer(question);
  const auto conclude = [&](const std::vector<std::optional<std::string>>& texts) {
    std::vector<std::optional<WaitAnswer>> answers;
    for (const auto& text : texts)
      answers.push_back(text ? WaitAnswer::parse(*text) : std::optional<WaitAnswer>());
    if (static_cast<std::size_t>(rank_.rank) < answers.size())
      answers[static_cast<std::size_t>(rank_.rank)] = mine;
    return describe_answers(question, members, answers, rank_.hosts);
  };
  try {
    const auto conclusion = rank_.place.inquiry->ask(question.to_text(), conclude);
    if (!conclusion || conclusion->text.empty()) return {};
    const auto asked = WaitQuestion::parse(conclusion->question);
    if (!asked) return {};
    const bool same = asked->collective.same_group(collective) &&
                      asked->collective.number == collective.number && asked->failed == failed;
    if (same || asked->collective.operation.empty()) return conclusion->text;
    const auto number = static_cast<std::size_t>(asked->rank);
    const RankSet asker(asked->rank, number < rank_.hosts.size() ? rank_.hosts[number] : "");
    return fmt::format("{} asked the others about {}: {}", asker.text(), asked->collective.text(),
                       conclusion->text);
  } catch (const std::exception& problem) {  // the failure is reported in any case
    log::warning("the other ranks could not be asked about {}: {}", collective.text(),
                 problem.what());
    return {};
  }
}

WaitAnswer DeviceWatch::answer(const WaitQuestion& question) {
  const auto deadline = WatchClock::now() + kBlocked;
  std::unique_lock lock(mutex_, std::try_to_lock);
  while (!lock) {
    if (WatchClock::now() >= deadline) return {Place::blocked};
    std::this_thread::sleep_for(kBetweenTries);
    (void)lock.try_lock();
  }
  return place_of(question.collective);
}

WaitAnswer DeviceWatch::place_of(const CollectiveName& asked) {
  const auto is_asked = [&asked](const CollectiveName& one) {
    return one.same_group(asked) && one.number == asked.number;
  };
  const auto group = std::ranges::find_if(groups_, [&asked](const Member& one) {
    return one.ranks.name == asked.group && one.ranks.world_ranks[0] == asked.first &&
           one.ranks.size() == asked.size;
  });
  if (group != groups_.end()) {
    const auto flight = std::ranges::find_if(
        flights_, [&is_asked](const Flight& one) { return is_asked(one.name); });
    if (flight != flights_.end()) {
      if (!flight->name.same_operation(asked)) return {Place::differs, flight->name.text()};
      return flight->at_gpu() ? WaitAnswer{} : WaitAnswer{Place::queued};
    }
    if (call_ && call_->collective && is_asked(*call_->collective))
      return call_->collective->same_operation(asked) ? WaitAnswer{}
                                                      : WaitAnswer{Place::differs, call_->what};
    if (group->next > asked.number) return {};
  }
  const Flight* queued = nullptr;
  for (const Flight& one : flights_) {
    if (one.done.poll()) continue;
    if (one.at_gpu()) return {Place::elsewhere, one.name.text()};
    if (queued == nullptr) queued = &one;
  }
  if (call_) return {Place::elsewhere, call_->what};
  if (rank_.waits_in)
    if (std::string what = rank_.waits_in->get(); !what.empty())
      return {Place::elsewhere, std::move(what)};
  if (queued != nullptr) return {Place::queued, queued->name.text()};
  return {Place::nowhere, rank_.place.position ? rank_.place.position() : ""};
}

}  // namespace sortie::trainer
