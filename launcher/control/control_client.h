// ControlClient: another process's end of the control socket. Blocking, every wait bounded.
#pragma once

#include <chrono>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher {

class ControlClient {
 public:
  /// ErrorCode::lost when nobody listens, auth when somebody else does.
  static Result<ControlClient> connect(const std::filesystem::path& run, unsigned epoch);

  /// Sends {"op": op, ...} and waits for the answer. ErrorCode::timeout: the supervisor is stopped
  /// or stuck; lost: it is gone; protocol: it refused.
  Result<nlohmann::json> ask(const nlohmann::json& request,
                             std::chrono::milliseconds limit = std::chrono::seconds(3));

  /// For poll(): readable when there is something to take or the supervisor has gone.
  int fd() const { return socket_.get(); }
  /// What has come without being asked for, after fd() was readable. False: the stream has ended.
  bool take();
  /// The line with which a supervisor ends its stream, once it has come.
  const std::optional<int>& end_exit_code() const { return end_exit_code_; }

 private:
  std::optional<nlohmann::json> next_line();

  Fd socket_;
  std::string pending_;
  std::optional<int> end_exit_code_;
};

}  // namespace sortie::launcher
