// Orders to hold a process, for a keeper that runs already or is forked by another process. They
// are sent over a SOCK_SEQPACKET socket between two processes of the same binary. An order carries
// the descriptors of the process and its HeldSpec: in the packet itself or, if that is large, in an
// anonymous file. So variables may have any size and never touch a disk.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "runner/process/keeper.h"

namespace sortie::runner {

/// A received order. `spec` uses the descriptors that arrived with it.
struct Order {
  HeldSpec spec;
  std::vector<Fd> descriptors;  // owns those in `spec`
  Fd control;                   // the keeper's end; none if the order arrived over it
};

/// `control`: the keeper's end of its control socket; -1 if `socket` is the other end of it.
/// Waits at most `limit` while the socket's buffer is full of earlier orders.
/// ErrorCode::spawn: the order could not be sent.
Result<> send_order(int socket, const HeldSpec& spec, int control,
                    std::chrono::milliseconds limit = {});
/// Does not block. ErrorCode::timeout: no order yet. ErrorCode::lost: the other side is gone.
/// ErrorCode::protocol: not an order.
Result<Order> receive_order(int socket);
/// Same, after waiting for at most `limit` (-1: without limit) or until a signal arrives.
Result<Order> await_order(int socket, std::chrono::milliseconds limit);

/// The spec without its descriptors and, except for the umask, without the defaults.
std::string encode_spec(const HeldSpec& spec);
Result<HeldSpec> decode_spec(std::string_view bytes);

}  // namespace sortie::runner
