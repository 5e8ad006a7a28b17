#include "launcher/control/site_orders_client.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "common/base/json_member.h"
#include "common/base/json_text.h"
#include "common/base/print_stderr.h"
#include "common/base/printable.h"
#include "common/config/hostlist.h"
#include "launcher/control/control_client.h"
#include "launcher/control/run_index.h"
#include "launcher/control/run_record.h"

namespace sortie::launcher {
namespace {

using json_member::number;
using json_member::text;

/// Planning a new site contacts no host, but checks files.
constexpr std::chrono::seconds kSitesAnswer{30};

std::string sites_table(const nlohmann::json& answer) {
  const auto line = [](const auto&... cells) {
    return fmt::format("{:<16}  {:<10}  {:<8}  {:>8}  {:>7}  {:>5}  {:>9}  {}\n", cells...);
  };
  std::string out =
      line("site", "ranks are", "rounds", "round", "attempt", "ranks", "step (s)", "hosts");
  for (const nlohmann::json& site : answer.value("sites", nlohmann::json::array())) {
    const double step = number(site, "step_seconds");
    out += line(printable(text(site, "site")), printable(text(site, "state")),
                printable(text(site, "rounds")), fmt::format("{:.0f}", number(site, "round")),
                fmt::format("{:.0f}", number(site, "attempt")),
                fmt::format("{:.0f}", number(site, "ranks")),
                step > 0 ? fmt::format("{:.3g}", step) : "-",
                printable(config::fold_host_names(json_member::texts(site, "hosts"))));
  }
  return out;
}

Result<std::string> ask_about_sites(const SitesRequest& request) {
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(request.log_dir));
  SORTIE_ASSIGN_OR_RETURN(const auto run, index.find(request.run));
  SORTIE_ASSIGN_OR_RETURN(const RunRecord record, read_run(run));
  if (record.sites.empty())
    return fail(ErrorCode::usage,
                fmt::format("{}: the run has no sites; give its hosts site=NAME to train over "
                            "several",
                            record.id));
  if (record.result)  // its supervisor may live a moment longer
    return fail(
        ErrorCode::lost,
        fmt::format("{0}: the run has ended; `sortie status {0}` shows its sites", record.id));
  if (!record.supervisor.alive)
    return fail(ErrorCode::lost,
                fmt::format("{}: the run has no supervisor; `sortie status {}` has what is known "
                            "of its sites",
                            record.id, record.id));
  SORTIE_ASSIGN_OR_RETURN(ControlClient client,
                          ControlClient::connect(record.path, record.supervisor.epoch));
  const nlohmann::json question = {{"op", "sites"},
                                   {"do", request.order},
                                   {"site", request.site},
                                   {"hosts", fmt::format("{}\n", fmt::join(request.hosts, "\n"))}};
  SORTIE_ASSIGN_OR_RETURN(nlohmann::json answer, client.ask(question, kSitesAnswer));
  if (request.json) {
    nlohmann::ordered_json out = {{"schema", "sortie/sites/1"}, {"run", record.id}};
    for (const char* key : {"round", "epoch", "sites"})
      if (answer.contains(key)) out[key] = answer[key];
    return json_text(out, 2) + "\n";
  }
  if (request.order == "add")
    return fmt::format("site {} is starting; it joins between two rounds\n", request.site);
  if (request.order == "remove") return fmt::format("site {} leaves\n", request.site);
  return fmt::format("{}  round {:.0f}\n\n", record.id, number(answer, "round")) +
         sites_table(answer);
}

}  // namespace

int order_sites(const SitesRequest& request) {
  const auto said = ask_about_sites(request);
  if (said) {
    fmt::print("{}", *said);
    return kExitOk;
  }
  print_stderr("{}\n", printable_lines(said.error().message));
  return exit_code_for(said.error().code);
}

}  // namespace sortie::launcher
