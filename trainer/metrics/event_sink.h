// Output of a rank: events (common/training/event.h) to the runner's socket, from which they reach
// the launcher's display, metrics.jsonl and the trackers; and lines for people on stdout, which
// form the log of the run. Neither ever blocks a step.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::trainer {

class EventSink {
 public:
  /// Connects to the runner. Empty `socket_path` = no runner: events are discarded. ErrorCode::io
  /// if the connection fails.
  static Result<EventSink> open(const std::string& socket_path);

  /// Sends an event without blocking. Buffers up to 1 MiB that the runner does not accept yet.
  /// Beyond that, drops the event and counts it.
  void send(const nlohmann::json& event);
  /// Writes a line to stdout, preceded by the time, without blocking. Buffers up to 1 MiB that a
  /// pipe does not accept yet. Beyond that, drops the line.
  void say(std::string_view line);
  /// Blocks up to one second until the buffered output is written.
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
