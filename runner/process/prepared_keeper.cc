#include "runner/process/prepared_keeper.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runner/process/keeper.h"
#include "runner/process/order.h"
#include "runner/process/process_tree.h"
#include "runner/process/rehearse.h"

namespace sortie::runner {
namespace {

[[noreturn]] void wait_for_order(int control, const ProcessDefaults& defaults) {
  // Above all not the socket of whoever converses: its end is how that is known to be over.
  close_descriptors_except({control});
  rehearse();
  Result<Order> order = fail(ErrorCode::timeout, "");
  while (!order && order.error().code == ErrorCode::timeout) {
    pollfd polled{control, POLLIN, 0};
    ::poll(&polled, 1, -1);
    order = receive_order(control);
  }
  if (!order) ::_exit(0);
  order->spec.defaults = defaults;
  keeper_main(order->spec, control);
}

}  // namespace

PreparedKeeper prepare_keeper(const ProcessDefaults& defaults) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return {};
  Fd mine(pair[0]);
  const Fd keepers(pair[1]);
  const pid_t pid = ::fork();
  if (pid == 0) wait_for_order(keepers.get(), defaults);
  if (pid < 0) return {};
  return {std::move(mine), pid};
}

}  // namespace sortie::runner
