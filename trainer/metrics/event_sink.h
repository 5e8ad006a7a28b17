// What a rank tells: events (common/training/event.h) to the runner's socket, from where they reach
// the launcher's display, metrics.jsonl and the trackers; and lines for people on stdout, which are
// the run's log. Neither ever holds up a step.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::trainer {

class EventSink {
 public:
  /// Empty `socket_path` = no runner: events go nowhere. ErrorCode::io when the socket can not be
  /// reached.
  static Result<EventSink> open(const std::string& socket_path);

  /// What the runner does not take at once is kept, up to 1 MiB; beyond that the event is dropped
  /// and counted.
  void send(const nlohmann::json& event);
  /// A line on stdout, with the time in front. What a pipe does not take at once is kept, up to
  /// 1 MiB; beyond that the line is dropped.
  void say(std::string_view line);
  /// Gives the readers up to a second to take what is kept.
  void flush();
  std::size_t dropped() const { return dropped_; }

 private:
  void write_pending();
  void write_lines();

  Fd socket_;
  std::string pending_, lines_;
  std::size_t dropped_ = 0;
};

}  // namespace sortie::trainer
