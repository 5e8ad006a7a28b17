// LauncherStore: lets the ranks of an attempt exchange small texts under keys through the launcher
// (launcher/supervise/rank_store.h), over a separate connection to SORTIE_SOCKET.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::trainer {

class LauncherStore {
 public:
  /// ErrorCode::lost if `socket_path` does not accept the connection; ErrorCode::config if it is
  /// not a valid path.
  static Result<LauncherStore> open(const std::string& socket_path);

  /// Stores `value` under `key`. A key keeps its first value. Both put() and get() block for the
  /// launcher's answer, up to `limit`. ErrorCode::timeout: no answer within `limit`;
  /// ErrorCode::lost: the runner is gone; ErrorCode::protocol: the launcher rejected the request.
  Result<> put(const std::string& key, const std::string& value, std::chrono::milliseconds limit);
  /// Blocks until a rank has put the key, and returns its value.
  Result<std::string> get(const std::string& key, std::chrono::milliseconds limit);

 private:
  explicit LauncherStore(Fd socket) : socket_(std::move(socket)) {}
  /// Sends a request, repeatedly if necessary, and returns the value of its answer; empty if it has
  /// none.
  Result<std::string> ask(const std::string& line, std::uint64_t number,
                          std::chrono::milliseconds limit, const char* late);

  Fd socket_;
  std::string pending_;
  std::uint64_t number_ = 0;
};

}  // namespace sortie::trainer
