#include "runner/process/prepared_keeper.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "runner/process/exec_child.h"
#include "runner/process/keeper.h"
#include "runner/process/order.h"
#include "runner/process/process_tree.h"
#include "runner/process/rehearse.h"

namespace sortie::runner {
namespace {

struct SocketPair {
  Fd ours, theirs;
};

SocketPair socket_pair() {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return {};
  return {Fd(pair[0]), Fd(pair[1])};
}

/// Waits for an order in a process that has nothing else to do until then. Error: the sender is
/// gone.
template <class EachTick>
Result<Order> next_order(int socket, const ProcessDefaults& defaults, EachTick each_tick) {
  for (;;) {
    Result<Order> order = await_order(socket, oom::kTick);
    if (!order && order.error().code == ErrorCode::timeout) {
      each_tick();
      continue;
    }
    if (order) order->spec.defaults = defaults;
    return order;
  }
}

[[noreturn]] void wait_in_child(int orders, int error_fd, pid_t keeper,
                                const ProcessDefaults& defaults) {
  // Above all not the keeper's control socket: it would make a killed keeper look alive.
  close_descriptors_except({orders, error_fd});
  begin_child(keeper);
  const Result<Order> order = next_order(orders, defaults, [] {});
  if (!order) ::_exit(127);
  exec_child(order->spec, error_fd, -1);
}

/// Leaves `ahead` unchanged if the system refuses; the process is then forked when the order
/// arrives.
void prepare_child(KeeperAhead& ahead, const ProcessDefaults& defaults) {
  SocketPair orders = socket_pair();
  int error_pipe[2];
  if (!orders.ours || ::pipe2(error_pipe, O_CLOEXEC) != 0) return;
  Fd error_from(error_pipe[0]), error_to(error_pipe[1]);
  const pid_t self = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return;
  if (pid == 0) wait_in_child(orders.theirs.get(), error_to.get(), self, defaults);
  ahead.orders = std::move(orders.ours);
  ahead.exec_error = std::move(error_from);
  ahead.waiting = pid;
}

[[noreturn]] void wait_in_keeper(int control, const ProcessDefaults& defaults) {
  // Above all not the socket of the conversation, whose end of file means that it is over.
  close_descriptors_except({control});
  begin_keeper();
  KeeperAhead ahead;
  prepare_child(ahead, defaults);
  rehearse(Rehearsed::data);  // after the fork, because fork makes every page copy-on-write
  const Result<Order> order = next_order(control, defaults, [&] { ahead.oom.tick(); });
  if (!order) ::_exit(0);
  keeper_main(order->spec, control, std::move(ahead));
}

}  // namespace

PreparedKeeper prepare_keeper(const ProcessDefaults& defaults) {
  SocketPair control = socket_pair();
  if (!control.ours) return {};
  const pid_t pid = ::fork();
  if (pid == 0) wait_in_keeper(control.theirs.get(), defaults);
  if (pid < 0) return {};
  return {std::move(control.ours), pid};
}

}  // namespace sortie::runner
