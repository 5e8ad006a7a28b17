// RankEvents of a job whose ranks are held, from the moment they come until the launcher has them:
// a connection that breaks takes none of them along. Events are counted from 0 over the whole job.
// Beyond kMaxBytes the oldest is given up. Pure state.
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
  /// All so far were given to the connection.
  void mark_sent() { sent_ = end(); }
  /// The launcher has the first `count`; more than there are is a lie and changes nothing.
  void acknowledge(std::uint64_t count);

  /// The number of the first event that is still here and not below `count`.
  std::uint64_t first_from(std::uint64_t count) const;
  /// Of the first event that was never given to a connection.
  std::uint64_t first_unsent() const { return first_from(sent_); }
  /// From the event of this number on.
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
