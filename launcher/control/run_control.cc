#include "launcher/control/run_control.h"

#include <fmt/core.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/base/printable.h"
#include "launcher/console/console.h"
#include "launcher/control/run_record.h"
#include "launcher/run/run_folder.h"
#include "launcher/run/run_loop.h"

namespace sortie::launcher {
namespace {

using OrderedJson = nlohmann::ordered_json;

Result<> cut_link(SupervisedRun& run, RunFolder& folder, const RunControl::CutLink& cut,
                  const std::string& host, std::chrono::milliseconds time) {
  if (!run.has_host(host))
    return fail(ErrorCode::usage, fmt::format("the run has no host {}", printable(host)));
  const double seconds = std::chrono::duration<double>(time).count();
  folder.event(JournalEvent::fault, {{"host", host}, {"kind", "link"}, {"seconds", seconds}});
  cut(host, time);
  return {};
}

ControlServer::Orders orders_for(SupervisedRun& run, RunFolder& folder, unsigned epoch,
                                 RunControl::CutLink cut) {
  ControlServer::Orders orders;
  orders.status = [&run, &folder, epoch] {
    return OrderedJson{{"run", folder.id()}, {"state", run.state()}, {"attempt", run.attempt()},
                       {"epoch", epoch},     {"pid", ::getpid()},    {"progress", run.progress()}};
  };
  orders.stop = [&run](bool now) { run.stop(now); };
  orders.sites = [&run](nlohmann::json order) { return run.sites_order(std::move(order)); };
  orders.cut = [&run, &folder, cut = std::move(cut)](const std::string& host,
                                                     std::chrono::milliseconds time) {
    return cut_link(run, folder, cut, host, time);
  };
  return orders;
}

}  // namespace

RunControl::RunControl(SupervisedRun& run, Console& console, RunFolder& folder,
                       const SupervisorLock& lock, boost::asio::any_io_executor executor,
                       CutLink cut_link)
    : console_(console),
      folder_(folder),
      started_(begin_of_run(folder.path())),
      server_(executor, orders_for(run, folder, lock.epoch(), std::move(cut_link))) {
  if (auto opened = server_.open(folder.path(), lock.epoch()); !opened)
    console.error(fmt::format("{}: `sortie attach` and `sortie stop` can not reach this run",
                              opened.error().message));
}

void RunControl::end(const Verdict& verdict) {
  if (folder_.superseded()) return server_.finish({{"event", "adopted"}});
  const RunResult result{verdict.exit_code, verdict.text, verdict.ended_after,
                         verdict.aftermath, started_,     unix_time()};
  if (auto written = write_result(folder_.path(), result); !written)
    console_.error(written.error().message);
  const OrderedJson line = {
      {"event", "end"}, {"exit_code", verdict.exit_code}, {"text", verdict.text}};
  server_.finish(line);
}

}  // namespace sortie::launcher
