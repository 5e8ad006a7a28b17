// Keeps the RankEvents of a job whose ranks may be held, from their arrival until the launcher
// acknowledges them, so that a broken connection loses none. Events are numbered from 0 over the
// whole job. Beyond kMaxBytes the oldest are dropped. Pure state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "common/wire/message.h"

namespace sortie::runner {

class KeptEvents {
 public:
  static constexpr std::size_t kMaxBytes = 4u << 20;

  void add(wire::RankEvent event);
  /// All events so far were passed to the connection.
  void mark_sent() { sent_ = end(); }
  /// The launcher has the first `count` events. No-op if fewer were sent.
  void acknowledge(std::uint64_t count);

  /// Number of the first kept event that is not below `count`.
  std::uint64_t first_from(std::uint64_t count) const;
  /// Number of the first kept event that was never passed to a connection.
  std::uint64_t first_unsent() const { return first_from(sent_); }
  /// Calls `sink` for each kept event from `number` on.
  template <class Sink>
  void each_from(std::uint64_t number, Sink&& sink) const {
    for (std::uint64_t i = first_from(number); i < end(); ++i)
      sink(events_[static_cast<std::size_t>(i - begin_)]);
  }

 private:
  std::uint64_t end() const { return begin_ + events_.size(); }
  void drop_first();

  std::deque<wire::RankEvent> events_;
  std::uint64_t begin_ = 0;  // number of events_.front()
  std::uint64_t sent_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace sortie::runner
