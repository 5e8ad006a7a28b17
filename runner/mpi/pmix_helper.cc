#include "runner/mpi/pmix_helper.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "common/asio/alarm.h"
#include "common/asio/spawn.h"
#include "common/base/process_status.h"
#include "common/wire/codec.h"
#include "runner/mpi/pmix_binary.h"
#include "runner/process/carried_program.h"

namespace sortie::runner {
namespace {

constexpr auto kReadyTimeout = std::chrono::seconds(20);
constexpr int kErrorFd = 2;

bool is_of_the_job(const wire::Message& message) {
  return std::holds_alternative<wire::PmixFence>(message) ||
         std::holds_alternative<wire::PmixModexRequest>(message) ||
         std::holds_alternative<wire::PmixModexReply>(message) ||
         std::holds_alternative<wire::PmixAbort>(message) ||
         std::holds_alternative<wire::PmixNames>(message) ||
         std::holds_alternative<wire::PmixNotice>(message) ||
         std::holds_alternative<wire::PmixExited>(message) ||
         std::holds_alternative<wire::RunnerError>(message);
}

}  // namespace

Result<> PmixHelper::launch(HeldSpec spec, const std::string& folder) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    return std::unexpected(os_error(errno, "socketpair"));
  Fd mine(pair[0]), its(pair[1]);
  // Asio must own the reading and the writing end separately.
  Fd mine_too(::fcntl(mine.get(), F_DUPFD_CLOEXEC, 3));
  Fd errors(::fcntl(kErrorFd, F_DUPFD_CLOEXEC, 3));
  if (!mine_too || !errors) return std::unexpected(os_error(errno, "dup"));
  SORTIE_TRY(link_.open(std::move(mine), std::move(mine_too)));

  SORTIE_ASSIGN_OR_RETURN(const std::string path,
                          unpack_program("sortie-pmix", pmix_binary(), folder, program_));
  spec.title = "sortie-keeper-m";
  spec.candidates = {path};
  spec.program_fd = program_.get();
  spec.argv = {"sortie-pmix"};
  spec.stdin_fd = its.get();
  spec.stdout_fd = its.get();
  spec.stderr_fd = errors.get();
  SORTIE_TRY(process_.start(spec, [this](const KeeperReport& report) { on_report(report); }));
  running_ = true;
  return {};
}

void PmixHelper::on_report(const KeeperReport& report) {
  switch (report.kind) {
    case KeeperReport::Kind::started:
      program_.reset();
      break;
    case KeeperReport::Kind::spawn_failed:
      if (end_.empty())
        end_ = fmt::format("sortie-pmix can not be started: {}", std::strerror(report.error));
      break;
    case KeeperReport::Kind::died:
      if (end_.empty())
        end_ = "sortie-pmix ended with " +
               ProcessStatus::from_wait_status(report.wait_status).to_string();
      break;
    case KeeperReport::Kind::announced:
    case KeeperReport::Kind::unkillable:
      break;
    case KeeperReport::Kind::keeper_lost:
      if (end_.empty()) end_ = "the keeper of sortie-pmix was killed";
      [[fallthrough]];
    case KeeperReport::Kind::gone:
      running_ = false;
      gone_wakeup_.notify();
      break;
  }
}

boost::asio::awaitable<Result<wire::PmixReady>> PmixHelper::start(
    wire::PmixSetup setup, HeldSpec base, std::string folder,
    std::function<void(pid_t)> on_keeper) {
  if (auto launched = launch(std::move(base), folder); !launched)
    co_return std::unexpected(std::move(launched).error());
  on_keeper(process_.keeper());
  spawn(io_, link_.write_loop());
  link_.send(setup);
  Alarm deadline(io_.get_executor());
  deadline.set(kReadyTimeout, [this] {
    end_ = fmt::format(
        "sortie-pmix was not ready within {} s: libpmix waits for something on this host; see "
        "whether TCP over its loopback works, or set runner.mpi = \"off\"",
        kReadyTimeout.count());
    stop();  // this ends the read below
  });
  auto message = co_await link_.read();
  deadline.cancel();
  if (message && *message) {
    if (auto* ready = std::get_if<wire::PmixReady>(&**message)) co_return std::move(*ready);
    stop();
    if (auto* error = std::get_if<wire::RunnerError>(&**message))
      co_return fail(ErrorCode::unsupported, error->message);
    co_return fail(ErrorCode::protocol, "sortie-pmix answers out of order");
  }
  stop();
  co_await wait_gone(std::chrono::seconds(2));
  co_return fail(ErrorCode::runner, end_.empty() ? "sortie-pmix closed its stdout" : end_);
}

boost::asio::awaitable<void> PmixHelper::relay(std::function<void(wire::Message)> on_message,
                                               std::function<void(std::string why)> on_lost) {
  for (;;) {
    auto message = co_await link_.read();
    if (message && *message && is_of_the_job(**message)) {
      on_message(std::move(**message));
      continue;
    }
    if (message && *message)
      message = fail(ErrorCode::protocol,
                     fmt::format("{} is not for the job", wire::message_name(**message)));
    if (stopping_) co_return;
    const bool garbage = !message && message.error().code == ErrorCode::protocol;
    const std::string why = garbage ? "sortie-pmix: " + message.error().message : std::string();
    stop();
    co_await wait_gone(std::chrono::seconds(2));
    on_lost(garbage ? why : end_.empty() ? "sortie-pmix closed its stdout" : end_);
    co_return;
  }
}

void PmixHelper::stop() {
  stopping_ = true;
  process_.stop(std::chrono::milliseconds(0));
}

boost::asio::awaitable<void> PmixHelper::wait_gone(std::chrono::steady_clock::duration limit) {
  if (running_) co_await gone_wakeup_.wait(limit);
}

}  // namespace sortie::runner
