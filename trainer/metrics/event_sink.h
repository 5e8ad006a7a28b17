// Events of the trainer: one JSON object per line, to the runner's socket (and so to the launcher's
// console, metrics.jsonl and TensorBoard), or as readable lines to stdout outside of `sortie run`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::trainer {

class EventSink {
 public:
  /// Empty `socket_path` = stdout. ErrorCode::io when the socket can not be reached.
  static Result<EventSink> open(const std::string& socket_path);

  /// Never blocks training: what the runner does not take at once is kept, up to 1 MiB; beyond that
  /// the event is dropped and counted.
  void send(const nlohmann::json& event);
  /// Gives the runner up to a second to take what is kept.
  void flush();
  std::size_t dropped() const { return dropped_; }

 private:
  void write_pending();

  Fd socket_;
  std::string pending_;
  std::size_t dropped_ = 0;
};

}  // namespace sortie::trainer
