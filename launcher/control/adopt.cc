#include "launcher/control/adopt.h"

#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "common/config/load.h"
#include "launcher/console/console.h"
#include "launcher/control/attach.h"
#include "launcher/control/control_client.h"
#include "launcher/control/detach.h"
#include "launcher/control/own_folder.h"
#include "launcher/control/run_index.h"
#include "launcher/control/run_record.h"
#include "launcher/host/bootstrap.h"
#include "launcher/plan/plan_container.h"
#include "launcher/run/run_command.h"
#include "launcher/run/run_folder.h"
#include "launcher/view/run_view.h"

namespace sortie::launcher {
LaunchPlan adopted_plan(const RunRecord& record, const config::JobConfig& job) {
  LaunchPlan plan;
  for (const RunRecord::Host& host : record.hosts) {
    HostPlan out;
    out.name = host.name;
    out.node_rank = static_cast<std::uint32_t>(plan.hosts.size());
    for (const std::uint32_t rank : host.ranks) out.ranks.emplace_back().rank = rank;
    plan.hosts.push_back(std::move(out));
  }
  plan.argv = record.argv;
  plan.world_size = record.world_size;
  // For the sweep of a host that is lost: its containers go too.
  if (job.runner.container.used()) plan.container = container_spec(job.runner);
  return plan;
}

namespace {

/// Whether a new supervisor may take over: the old one is dead, or alive but silent (stopped).
Result<> may_adopt(const RunRecord& record, const config::JobConfig& job) {
  const SupervisorFacts& boss = record.supervisor;
  if (job.runner.on_launcher_loss == "kill")
    return fail(ErrorCode::lost,
                fmt::format("{}: its hosts have ended their ranks: runner.on_launcher_loss was "
                            "\"kill\"; nothing is left to adopt",
                            record.id));
  if (!boss.alive) return {};
  if (boss.machine != machine_name())
    return fail(ErrorCode::usage, fmt::format("{}: its supervisor (pid {}) lives on {}; use sortie "
                                              "there",
                                              record.id, boss.pid, boss.machine));
  auto client = ControlClient::connect(record.path, boss.epoch);
  const nlohmann::json question = {{"op", "status"}};
  if (client && client->ask(question))
    return fail(ErrorCode::usage,
                fmt::format("{0}: its supervisor (pid {1}) lives; use `sortie attach {0}`",
                            record.id, boss.pid));
  return {};
}

int supervise_adopted(const RunRecord& record, const config::JobConfig& job, StartNotice& notice) {
  const auto give_up = [&](const Error& error) {
    const int code = exit_code_for(error.code);
    notice.failed(code, error.message);
    return code;
  };
  const auto binary = open_runner_binary();
  if (!binary) return give_up(binary.error());
  RunFolder folder = RunFolder::open(record.path, job.logger.tensorboard);
  const auto lock = SupervisorLock::take(record.path, record.supervisor.epoch + 1);
  if (!lock) return give_up(lock.error());
  if (auto left = notice.leave_terminal(record.path); !left) return give_up(left.error());
  Console::Style style = Console::detect();
  style.ranks = false;
  Console console(style);
  console.set_training(read_training(record.path));
  const LaunchPlan plan = adopted_plan(record, job);
  return supervise(
      {job, plan, *binary, folder, *lock, console, &notice, read_journal(record.path).cgroups});
}

Result<int> adopt_and_attach(AttachRequest request) {
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(request.log_dir));
  SORTIE_ASSIGN_OR_RETURN(const auto run, index.find(request.run));
  SORTIE_ASSIGN_OR_RETURN(const RunRecord record, read_run(run));
  request.run = run.string();
  if (record.result) return attach(request);
  SORTIE_TRY(check_own_folder(run));
  SORTIE_ASSIGN_OR_RETURN(const auto loaded, config::load_job((run / "config.toml").string(), {}));
  SORTIE_TRY(may_adopt(record, loaded.job));
  request.since_ms = static_cast<std::int64_t>(unix_time() * 1000);
  const int started = run_detached(
      [&](StartNotice& notice) { return supervise_adopted(record, loaded.job, notice); },
      /*announce=*/false);
  return started == kExitOk ? attach(request) : started;
}

}  // namespace

int adopt(const AttachRequest& request) {
  const auto code = adopt_and_attach(request);
  if (code) return *code;
  Console(Console::detect()).error(code.error().message);
  return exit_code_for(code.error().code);
}

}  // namespace sortie::launcher
