// Messages of a container's process 1 to the runner, over a SOCK_SEQPACKET socket in the run
// folder. The other direction carries orders (runner/process/order.h). Both ends are the same
// binary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/result.h"

namespace sortie::runner::container {

/// A message of container-init.
struct InitReport {
  enum class Kind : std::uint32_t {
    hello,         // the first one; `text` is the container's PATH
    refused,       // an order failed: errno; nothing was started
    asked_to_end,  // by a signal: the engine ends the container
  };
  Kind kind = Kind::hello;
  std::int32_t value = 0;  // errno, or the signal's number
  std::string text{};
};

/// Maximum length of a report's text; the rest is cut off.
inline constexpr std::size_t kMaxReportText = 4096;

Result<> send_report(int socket, const InitReport& report);
/// Does not block. ErrorCode::timeout: no report. ErrorCode::lost: the other side is gone.
/// ErrorCode::protocol: a malformed report.
Result<InitReport> receive_report(int socket);

}  // namespace sortie::runner::container
