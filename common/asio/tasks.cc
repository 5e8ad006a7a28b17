#include <boost/asio/co_spawn.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <exception>
#include <utility>

#include "common/asio/run.h"
#include "common/asio/spawn.h"
#include "common/asio/task_group.h"
#include "common/asio/token.h"

namespace sortie {
namespace asio = boost::asio;

namespace {

void rethrow(std::exception_ptr error) {
  if (error) std::rethrow_exception(std::move(error));
}

}  // namespace

void spawn(const asio::any_io_executor& executor, asio::awaitable<void> task) {
  asio::co_spawn(executor, std::move(task), rethrow);
}

void spawn(asio::io_context& io, asio::awaitable<void> task) {
  spawn(io.get_executor(), std::move(task));
}

void spawn(const asio::any_io_executor& executor, std::function<asio::awaitable<void>()> task) {
  asio::co_spawn(executor, std::move(task), rethrow);
}

void run_to_end(asio::io_context& io, asio::awaitable<void> work) {
  std::exception_ptr failure;
  asio::co_spawn(io, std::move(work), [&](std::exception_ptr error) {
    failure = std::move(error);
    io.stop();
  });
  io.run();
  rethrow(std::move(failure));
}

/// Shared with the tasks, which may outlast the group.
struct TaskGroup::State {
  explicit State(asio::any_io_executor executor) : changed(executor) {}
  asio::steady_timer changed;  // cancelled when wait() may have to return
  std::size_t running = 0;
  std::exception_ptr failure;
  bool watched = true;  // wait() will rethrow `failure`
};

TaskGroup::TaskGroup(asio::any_io_executor executor)
    : state_(std::make_shared<State>(std::move(executor))) {}

TaskGroup::~TaskGroup() {
  state_->watched = false;
}

void TaskGroup::spawn(asio::awaitable<void> task) {
  ++state_->running;
  asio::co_spawn(state_->changed.get_executor(), std::move(task),
                 [state = state_](std::exception_ptr error) {
                   --state->running;
                   if (error && !state->watched) std::rethrow_exception(std::move(error));
                   // Keep the first failure: later ones are often its consequences.
                   if (error && !state->failure) state->failure = std::move(error);
                   if (state->running == 0 || state->failure) state->changed.cancel();
                 });
}

std::size_t TaskGroup::running() const {
  return state_->running;
}

asio::awaitable<void> TaskGroup::wait() {
  const auto state = state_;
  while (state->running > 0 && !state->failure && state->watched) {
    state->changed.expires_at(std::chrono::steady_clock::time_point::max());
    co_await state->changed.async_wait(kToken);
  }
  rethrow(std::exchange(state->failure, nullptr));
}

void TaskGroup::stop_waiting() {
  state_->watched = false;
  state_->changed.cancel();
}

}  // namespace sortie
