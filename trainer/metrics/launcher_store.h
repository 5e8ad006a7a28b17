// LauncherStore: small texts under keys that the ranks of an attempt leave for each other with the
// launcher (launcher/supervise/rank_store.h), over a connection of its own to SORTIE_SOCKET.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::trainer {

class LauncherStore {
 public:
  /// ErrorCode::lost: nobody listens at `socket_path`.
  static Result<LauncherStore> open(const std::string& socket_path);

  /// A key keeps its first value. Both wait for the launcher, `limit` at most: ErrorCode::timeout;
  /// ErrorCode::lost: the runner is gone; ErrorCode::protocol: the launcher has refused.
  Result<> put(const std::string& key, const std::string& value, std::chrono::milliseconds limit);
  /// Waits until a rank has put it.
  Result<std::string> get(const std::string& key, std::chrono::milliseconds limit);

 private:
  explicit LauncherStore(Fd socket) : socket_(std::move(socket)) {}
  /// The value of the answer; empty where it has none.
  Result<std::string> ask(const std::string& line, std::uint64_t number,
                          std::chrono::milliseconds limit);

  Fd socket_;
  std::string pending_;
  std::uint64_t number_ = 0;
};

}  // namespace sortie::trainer
