// LauncherStore: lets the ranks of an attempt exchange small texts under keys through the launcher
// (launcher/supervise/rank_store.h), over a separate connection to SORTIE_SOCKET. Except for
// interrupt(), an object is used by one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::trainer {

class LauncherStore {
 public:
  /// ErrorCode::lost if `socket_path` does not accept the connection; ErrorCode::config if it is
  /// not a valid path.
  static Result<LauncherStore> open(const std::string& socket_path);

  /// Time after which a question without an answer is repeated, 2 s by default. For a get() that
  /// may wait as long as the run lasts.
  void repeat_every(std::chrono::milliseconds time) { again_ = time; }
  /// Makes a call that blocks, and all later ones, return ErrorCode::lost. Thread-safe.
  void interrupt() const;

  /// Stores `value` under `key`. A key keeps its first value. All calls block for the launcher's
  /// answer, up to `limit`. ErrorCode::timeout: no answer within `limit`; ErrorCode::lost: the
  /// runner is gone; ErrorCode::protocol: the launcher rejected the request.
  Result<> put(const std::string& key, const std::string& value, std::chrono::milliseconds limit);
  /// Blocks until a rank has put the key, and returns its value. `missing` is the message of the
  /// timeout.
  Result<std::string> get(const std::string& key, std::chrono::milliseconds limit,
                          const std::string& missing);
  /// Blocks until all keys are there, and returns their values in the same order. If some are not
  /// there at `limit`, these are nullopt.
  Result<std::vector<std::optional<std::string>>> get_all(std::span<const std::string> keys,
                                                          std::chrono::milliseconds limit);

 private:
  struct Question {
    std::uint64_t number = 0;
    std::string line;
    std::optional<std::string> answer;  // empty if it has no value
  };

  explicit LauncherStore(Fd socket);
  Question question(const char* what, const std::string& key, const std::string* value = nullptr);
  /// Sends questions with consecutive numbers, repeatedly if necessary, until all are answered or
  /// `limit` is over.
  Result<> ask(std::span<Question> questions, std::chrono::milliseconds limit);
  /// Handles one line of the launcher.
  static Result<> take(const std::string& line, std::span<Question> questions);

  Fd socket_;
  std::string pending_;
  std::uint64_t number_;  // of the last question
  std::chrono::milliseconds again_;
};

}  // namespace sortie::trainer
