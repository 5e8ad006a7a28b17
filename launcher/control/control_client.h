// ControlClient: the client end of the control socket of a supervisor. Blocking; every wait is
// bounded.
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
  /// ErrorCode::lost if no process listens; ErrorCode::auth if the listener belongs to another
  /// user.
  static Result<ControlClient> connect(const std::filesystem::path& run, unsigned epoch);

  /// Sends {"op": op, ...} and waits for the answer. ErrorCode::timeout: the supervisor is stopped
  /// or stuck; lost: it is gone; protocol: it refused.
  Result<nlohmann::json> ask(const nlohmann::json& request,
                             std::chrono::milliseconds limit = std::chrono::seconds(3));

  /// For poll(): readable when data has arrived or the supervisor is gone.
  int fd() const { return socket_.get(); }
  /// Reads unsolicited lines after fd() became readable. Returns false at the end of the stream.
  bool take();
  /// Exit code from the supervisor's last line; empty until that has arrived.
  const std::optional<int>& end_exit_code() const { return end_exit_code_; }

 private:
  std::optional<nlohmann::json> next_line();

  Fd socket_;
  std::string pending_;
  std::optional<int> end_exit_code_;
};

}  // namespace sortie::launcher
