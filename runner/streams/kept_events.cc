#include "runner/streams/kept_events.h"

#include <algorithm>
#include <utility>

namespace sortie::runner {

void KeptEvents::add(wire::RankEvent event) {
  bytes_ += event.json.size();
  events_.push_back(std::move(event));
  while (bytes_ > kMaxBytes && events_.size() > 1) drop_first();
}

void KeptEvents::drop_first() {
  bytes_ -= events_.front().json.size();
  events_.pop_front();
  ++begin_;
}

void KeptEvents::acknowledge(std::uint64_t count) {
  if (count > sent_) return;
  while (begin_ < count && !events_.empty()) drop_first();
}

std::uint64_t KeptEvents::first_from(std::uint64_t count) const {
  return std::min(std::max(begin_, count), end());
}

}  // namespace sortie::runner
