#include "runner/container/engine_call.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "common/asio/spawn.h"
#include "common/base/pipe.h"
#include "runner/streams/wakeup.h"

namespace sortie::runner::container {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMaxOut = 4u << 20;
constexpr std::size_t kMaxErr = 64u << 10;
constexpr std::size_t kMaxLine = 4096;
constexpr milliseconds kCallLook{100};
constexpr milliseconds kKillLimit{2000};

/// The runner's variables with some replaced: the client is the user's own tool and needs them.
std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> env = variables;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view line = *entry;
    const std::string_view name = line.substr(0, line.find('=') + 1);
    bool replaced = false;
    for (const std::string& ours : variables) replaced = replaced || ours.starts_with(name);
    if (!replaced) env.emplace_back(line);
  }
  return env;
}

/// State that a call still needs when its caller is gone.
struct Running : std::enable_shared_from_this<Running> {
  explicit Running(boost::asio::io_context& io) : process(io), out(io), err(io), changed(io) {}
  HeldProcess process;
  boost::asio::posix::stream_descriptor out, err;
  Wakeup changed;
  CallOutput result;
  std::string spawn_error;
  std::function<void(std::string_view)> on_line;
  std::shared_ptr<Running> self;  // keeps this object alive while reports may arrive
  int open = 2;
  bool gone = false;
};

void take_lines(const Running& call, std::string& line, std::string_view bytes) {
  for (const char letter : bytes) {
    if (letter != '\n' && letter != '\r') {
      if (line.size() < kMaxLine) line += letter;
      continue;
    }
    if (!line.empty() && call.on_line) call.on_line(line);
    line.clear();
  }
}

boost::asio::awaitable<void> read_stream(std::shared_ptr<Running> call,
                                         boost::asio::posix::stream_descriptor& stream,
                                         std::string& text, std::size_t most) {
  char buffer[4096];
  std::string line;
  for (;;) {
    const auto [error, count] =
        co_await stream.async_read_some(boost::asio::buffer(buffer), kToken);
    if (error) break;
    text.append(buffer, std::min(count, most - std::min(most, text.size())));
    take_lines(*call, line, std::string_view(buffer, count));
  }
  if (!line.empty() && call->on_line) call->on_line(line);
  --call->open;
  call->changed.notify();
}

void on_report(const std::shared_ptr<Running>& call, const KeeperReport& report) {
  switch (report.kind) {
    case KeeperReport::Kind::spawn_failed:
      call->spawn_error = std::strerror(report.error);
      break;
    case KeeperReport::Kind::died:
      call->result.status = ProcessStatus::from_wait_status(report.wait_status);
      break;
    case KeeperReport::Kind::keeper_lost:
      if (call->result.status.kind == ProcessStatus::Kind::not_started)
        call->spawn_error = "its keeper was killed";
      [[fallthrough]];
    case KeeperReport::Kind::gone:
      call->gone = true;
      call->changed.notify();
      // Not destroyed here, because `process` is the caller. If the loop ends first, the handler
      // destroys it.
      boost::asio::post(call->out.get_executor(), [last = std::move(call->self)] {});
      break;
    default:
      break;
  }
}

Result<> start(const std::shared_ptr<Running>& call, const Call& what,
               const ProcessDefaults& defaults) {
  SORTIE_ASSIGN_OR_RETURN(Pipe out, make_pipe());
  SORTIE_ASSIGN_OR_RETURN(Pipe err, make_pipe());
  HeldSpec held;
  held.title = "sortie-keep-e";
  held.candidates = {what.argv.at(0)};
  held.argv = what.argv;
  held.env = environment_with(what.variables);
  held.folders = {"/"};
  held.stdout_fd = out.write.get();
  held.stderr_fd = err.write.get();
  held.run_folder = what.folder;
  held.detaches = what.detaches;
  held.defaults = defaults;
  Running* const raw = call.get();
  SORTIE_TRY(call->process.start(
      held, [raw](const KeeperReport& report) { on_report(raw->shared_from_this(), report); }));
  call->self = call;
  call->out.assign(out.read.release());
  call->err.assign(err.read.release());
  return {};
}

}  // namespace

boost::asio::awaitable<Result<CallOutput>> EngineCalls::run(Call call) {
  const auto running = std::make_shared<Running>(io_);
  running->on_line = call.on_line;
  const Result<> started = start(running, call, defaults_);
  if (on_keeper && running->process.keeper() > 0) on_keeper(running->process.keeper());
  if (!started) co_return std::unexpected(started.error());
  spawn(io_, read_stream(running, running->out, running->result.out, kMaxOut));
  spawn(io_, read_stream(running, running->err, running->result.err, kMaxErr));
  const auto deadline = Clock::now() + call.limit;
  bool late = false, cancelled = false;
  while (!running->gone || running->open > 0) {
    const auto now = Clock::now();
    const bool stop_now =
        (!late && now >= deadline) || (!cancelled && call.cancelled && call.cancelled());
    if (stop_now && !late && !cancelled) {
      late = now >= deadline;
      cancelled = !late;
      running->process.stop(milliseconds(0));
    }
    if ((late || cancelled) && now >= deadline + kKillLimit) break;
    co_await running->changed.wait(kCallLook);
  }
  running->on_line = nullptr;
  if (late)
    co_return fail(ErrorCode::timeout, fmt::format("{} {}: no end within {} s", call.argv[0],
                                                   call.argv.size() > 1 ? call.argv[1] : "",
                                                   call.limit.count() / 1000));
  if (cancelled) co_return fail(ErrorCode::interrupted, call.argv[0] + ": given up");
  if (!running->spawn_error.empty())
    co_return fail(ErrorCode::spawn, fmt::format("{}: {}", call.argv[0], running->spawn_error));
  co_return std::move(running->result);
}

}  // namespace sortie::runner::container
