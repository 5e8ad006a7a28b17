// What process 1 of a container tells the runner, over a SOCK_SEQPACKET socket in the run folder.
// What it is told there are orders (runner/process/order.h). Both ends are the same binary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/result.h"

namespace sortie::runner::container {

/// container-init to runner.
struct InitReport {
  enum class Kind : std::uint32_t {
    hello,         // first; `text` is the container's PATH
    refused,       // an order: errno; nothing was started
    asked_to_end,  // by a signal: the engine wants the container to go
  };
  Kind kind = Kind::hello;
  std::int32_t value = 0;  // errno, or the signal's number
  std::string text{};
};

/// The longest text of a report; what is beyond is cut.
inline constexpr std::size_t kMaxReportText = 4096;

Result<> send_report(int socket, const InitReport& report);
/// Nothing there: ErrorCode::timeout. The other side is gone: ErrorCode::lost.
Result<InitReport> receive_report(int socket);

}  // namespace sortie::runner::container
