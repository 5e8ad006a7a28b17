#include "runner/mpi/pmix_memory.h"

#include <algorithm>

namespace sortie::runner {
namespace {
constexpr std::size_t kMaxDone = 8;
constexpr std::size_t kMaxDoneBytes = 16u << 20;
}  // namespace

void PmixMemory::asked(const wire::Message& message) {
  if (const auto* fence = std::get_if<wire::PmixFence>(&message))
    fences_[fence->key] = *fence;
  else if (const auto* request = std::get_if<wire::PmixModexRequest>(&message))
    requests_[request->id] = *request;
  else if (const auto* abort = std::get_if<wire::PmixAbort>(&message))
    aborts_.push_back(*abort);
  else if (const auto* question = std::get_if<wire::PmixNames>(&message))
    questions_[question->id] = *question;
}

void PmixMemory::take(const wire::PmixNames& question, const wire::PmixNamesDone& answer) {
  using Action = wire::PmixNames::Action;
  if (question.action == Action::publish && answer.status == 0)
    for (std::size_t i = 0; i < std::min(question.keys.size(), question.values.size()); ++i)
      names_[question.keys[i]] = {question.rank, question.values[i]};
  // As in the launcher's table: a rank removes only its own names; no keys means all of them.
  if (question.action == Action::unpublish)
    std::erase_if(names_, [&](const auto& name) {
      return name.second.rank == question.rank &&
             (question.keys.empty() ||
              std::ranges::find(question.keys, name.first) != question.keys.end());
    });
}

bool PmixMemory::answered(const wire::Message& message) {
  if (const auto* done = std::get_if<wire::PmixFenceDone>(&message)) {
    auto fence = fences_.extract(done->key);
    if (fence.empty()) return false;
    done_bytes_ += fence.mapped().data.size();
    done_.push_back(std::move(fence.mapped()));
    while (done_.size() > kMaxDone || (done_.size() > 1 && done_bytes_ > kMaxDoneBytes)) {
      done_bytes_ -= done_.front().data.size();
      done_.pop_front();
    }
    return true;
  }
  if (const auto* reply = std::get_if<wire::PmixModexReply>(&message))
    return requests_.erase(reply->id) > 0;
  if (const auto* done = std::get_if<wire::PmixNamesDone>(&message)) {
    const auto question = questions_.extract(done->id);
    if (question.empty()) return false;
    take(question.mapped(), *done);
  }
  return true;
}

std::vector<wire::Message> PmixMemory::open(std::uint32_t rank) const {
  std::vector<wire::Message> out;
  wire::PmixNames restored;
  restored.action = wire::PmixNames::Action::restore;
  for (const auto& [key, name] : names_) {
    restored.rank = name.rank;
    restored.keys = {key};
    restored.values = {name.value};
    out.push_back(restored);
  }
  restored.rank = rank;
  restored.keys.clear();
  restored.values.clear();
  out.push_back(restored);
  add_unanswered(out, true);
  return out;
}

std::vector<wire::Message> PmixMemory::unanswered() const {
  std::vector<wire::Message> out;
  add_unanswered(out, false);
  return out;
}

void PmixMemory::add_unanswered(std::vector<wire::Message>& out, bool with_answered_fences) const {
  for (const auto& [id, question] : questions_) out.emplace_back(question);
  if (with_answered_fences)
    for (const wire::PmixFence& fence : done_) out.emplace_back(fence);
  for (const auto& [key, fence] : fences_) out.emplace_back(fence);
  for (const auto& [id, request] : requests_) out.emplace_back(request);
  for (const wire::PmixAbort& abort : aborts_) out.emplace_back(abort);
}

}  // namespace sortie::runner
