#include "runner/pmix/direct_modex.h"

#include <pmix_common.h>

#include <algorithm>

namespace sortie::runner {

void DirectModex::answer(Steps& steps, Requests::iterator request, std::int32_t status,
                         std::string data) {
  const auto& [id, asked] = *request;
  steps.reply.push_back({id, asked.rank, status, std::move(data)});
  if (asked.deadline) timers_.erase({*asked.deadline, id});
  timers_.erase({asked.again, id});
  requests_.erase(request);
}

void DirectModex::look(Steps& steps, Requests::iterator request) {
  request->second.state = Asked::State::looking;
  steps.look.push_back({request->first, request->second.rank, request->second.key});
}

void DirectModex::fetch(Steps& steps, Requests::iterator request, Asked::State state) {
  request->second.state = state;
  steps.fetch.push_back({request->first, request->second.rank});
}

DirectModex::Steps DirectModex::ask(const wire::PmixModexRequest& request, Time now) {
  Steps steps;
  const auto [added, is_new] = requests_.try_emplace(request.id);
  if (!is_new) return steps;
  Asked& asked = added->second;
  asked.rank = request.rank;
  asked.key = request.key;
  if (request.timeout_s > 0) {
    asked.deadline = now + std::chrono::seconds(request.timeout_s);
    timers_.insert({*asked.deadline, request.id});
  }
  if (asked.key.empty())
    fetch(steps, added, Asked::State::last_fetch);
  else
    look(steps, added);
  return steps;
}

DirectModex::Steps DirectModex::on_looked(std::uint64_t id, bool found, Time now) {
  Steps steps;
  const auto request = requests_.find(id);
  if (request == requests_.end() || request->second.state != Asked::State::looking) return steps;
  Asked& asked = request->second;
  // A rank that commits nothing more: answer with what there is, without the requested key.
  if (found || (finalized_.contains(asked.rank) && asked.has_committed)) {
    fetch(steps, request, Asked::State::last_fetch);
  } else if (finalized_.contains(asked.rank)) {
    answer(steps, request, PMIX_ERR_NOT_FOUND);
  } else if (!asked.has_committed) {
    fetch(steps, request, Asked::State::first_fetch);
  } else {
    asked.state = Asked::State::pausing;
    asked.again = now + asked.pause;
    timers_.insert({asked.again, id});
    asked.pause = std::min(2 * asked.pause, kLongestPause);
  }
  return steps;
}

DirectModex::Steps DirectModex::on_fetched(std::uint64_t id, std::int32_t status,
                                           std::string data) {
  Steps steps;
  const auto request = requests_.find(id);
  if (request == requests_.end()) return steps;  // its deadline has passed
  Asked& asked = request->second;
  if (asked.state == Asked::State::last_fetch) {
    answer(steps, request, status, std::move(data));
  } else if (asked.state == Asked::State::first_fetch) {
    asked.has_committed = true;
    look(steps, request);
  }
  return steps;
}

DirectModex::Steps DirectModex::on_finalized(std::uint32_t rank, Time now) {
  Steps steps;
  finalized_.insert(rank);
  for (auto request = requests_.begin(); request != requests_.end();) {
    const auto one = request++;
    if (one->second.rank != rank) continue;
    if (one->second.state == Asked::State::first_fetch) {
      answer(steps, one, PMIX_ERR_NOT_FOUND);
    } else if (one->second.state == Asked::State::pausing) {
      timers_.erase({one->second.again, one->first});
      one->second.again = now;
      timers_.insert({now, one->first});
    }
  }
  return steps;
}

std::optional<DirectModex::Time> DirectModex::next() const {
  if (timers_.empty()) return std::nullopt;
  return timers_.begin()->first;
}

DirectModex::Steps DirectModex::due(Time now) {
  Steps steps;
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const std::uint64_t id = timers_.begin()->second;
    timers_.erase(timers_.begin());
    const auto request = requests_.find(id);
    if (request == requests_.end()) continue;
    if (request->second.deadline && *request->second.deadline <= now)
      answer(steps, request, PMIX_ERR_TIMEOUT);
    else if (request->second.state == Asked::State::pausing)
      look(steps, request);
  }
  return steps;
}

}  // namespace sortie::runner
