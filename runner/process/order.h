// A process to hold, for a keeper that runs already or is forked by somebody else: over a
// SOCK_SEQPACKET socket between two processes of the same binary. An order carries the descriptors
// of the process, and what else is to be known about it: with it or, where that is much, in an
// anonymous file. Variables are of any size and never touch a disk.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "runner/process/keeper.h"

namespace sortie::runner {

/// As it arrives: the spec names the descriptors that came along.
struct Order {
  HeldSpec spec;
  std::vector<Fd> descriptors;  // that the spec names
  Fd control;                   // the keeper's end; none where the order came over it
};

/// `control`: the keeper's end of its control socket; -1 where `socket` is the other end of it.
/// ErrorCode::spawn: it was not taken.
Result<> send_order(int socket, const HeldSpec& spec, int control);
/// Nothing there: ErrorCode::timeout. The other side is gone: ErrorCode::lost. Not an order:
/// ErrorCode::protocol.
Result<Order> receive_order(int socket);
/// The same after a wait for at most `limit` (-1: without one) or for a signal.
Result<Order> await_order(int socket, std::chrono::milliseconds limit);

/// The spec without its descriptors and, but for the umask, the defaults; and back.
std::string encode_spec(const HeldSpec& spec);
Result<HeldSpec> decode_spec(std::string_view bytes);

}  // namespace sortie::runner
