#include "runner/pmix_memory.h"

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
  return true;
}

std::vector<wire::Message> PmixMemory::open() const {
  std::vector<wire::Message> out;
  for (const wire::PmixFence& fence : done_) out.push_back(fence);
  for (const auto& [key, fence] : fences_) out.push_back(fence);
  for (const auto& [id, request] : requests_) out.push_back(request);
  for (const wire::PmixAbort& abort : aborts_) out.push_back(abort);
  return out;
}

}  // namespace sortie::runner
