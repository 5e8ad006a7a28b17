// What the runner and process 1 of a container say to each other, over a SOCK_SEQPACKET socket in
// the run folder. Both ends are the same binary. An order carries the descriptors of one process to
// hold, and what else is to be known about it in an anonymous file: variables are of any size and
// never touch a disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "runner/process/keeper.h"

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
  std::string text;
};

/// The longest text of a report; what is beyond is cut.
inline constexpr std::size_t kMaxReportText = 4096;

Result<> send_report(int socket, const InitReport& report);
/// Nothing there: ErrorCode::timeout. The other side is gone: ErrorCode::lost.
Result<InitReport> receive_report(int socket);

/// A process to hold, as it arrives: the spec names the descriptors that came along. An empty list
/// of candidates: argv[0] is looked for in the PATH of the container. The container's own variables
/// are those that `env` does not have.
struct Order {
  HeldSpec spec;
  std::vector<Fd> descriptors;  // that the spec names
  Fd control;
};

Result<> send_order(int socket, const HeldSpec& spec, int control);
/// Errors as of receive_report; ErrorCode::protocol: not an order.
Result<Order> receive_order(int socket);

/// The spec without its descriptors, and back.
std::string encode_spec(const HeldSpec& spec);
Result<HeldSpec> decode_spec(std::string_view bytes);

}  // namespace sortie::runner::container
