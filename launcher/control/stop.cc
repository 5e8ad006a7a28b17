#include "launcher/control/stop.h"

#include <fmt/core.h>
#include <poll.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "launcher/console/console.h"
#include "launcher/control/control_client.h"
#include "launcher/control/run_index.h"
#include "launcher/control/run_record.h"

namespace sortie::launcher {
namespace {

using Clock = std::chrono::steady_clock;
/// The supervisor bounds the end by itself (grace and slack); this is for one that was stopped.
constexpr auto kEndsWithin = std::chrono::hours(1) + std::chrono::seconds(60);
constexpr auto kAfterItsEnd = std::chrono::seconds(3);

Result<std::string> stop(const std::string& name, const std::string& log_dir, bool now) {
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(log_dir));
  SORTIE_ASSIGN_OR_RETURN(const auto run, index.find(name));
  SORTIE_ASSIGN_OR_RETURN(const RunRecord record, read_run(run));
  if (record.result)
    return fmt::format("{} had ended already, with exit code {}", record.id,
                       record.result->exit_code);
  const SupervisorFacts& boss = record.supervisor;
  if (!record.alive())
    return fail(ErrorCode::lost,
                fmt::format("{}: its supervisor is gone; its hosts end their ranks "
                            "by themselves, there is nothing to stop",
                            record.id));
  const auto explained = [&](Error error) {
    std::string advice = fmt::format("its supervisor is process {} on {}", boss.pid, boss.machine);
    if (boss.machine != machine_name()) advice += "; use sortie there";
    return std::unexpected(
        Error{error.code, fmt::format("{}: {}; {}", record.id, error.message, advice)});
  };
  auto client = ControlClient::connect(run, boss.epoch);
  if (!client) return explained(std::move(client).error());
  const nlohmann::json order = {{"op", "stop"}, {"now", now}};
  if (auto answer = client->ask(order); !answer && !read_result(run))
    return explained(std::move(answer).error());
  const auto deadline = Clock::now() + kEndsWithin;
  for (bool open = true; open && Clock::now() < deadline && !read_result(run);) {
    pollfd polled = {client->fd(), POLLIN, 0};
    if (::poll(&polled, 1, 1000) > 0) open = client->take();
  }
  for (const auto end = Clock::now() + kAfterItsEnd; Clock::now() < end; ::poll(nullptr, 0, 20))
    if (const auto result = read_result(run))
      return fmt::format("{} ended with exit code {}", record.id, result->exit_code);
  return fail(ErrorCode::lost, fmt::format("{}: its supervisor went away without a result; `sortie "
                                           "status {}` has what is known",
                                           record.id, record.id));
}

}  // namespace

int stop_run(const std::string& run, const std::string& log_dir, bool now) {
  const auto said = stop(run, log_dir, now);
  fmt::print(stderr, "{}\n", printable_lines(said ? *said : said.error().message));
  return said ? kExitOk : exit_code_for(said.error().code);
}

}  // namespace sortie::launcher
