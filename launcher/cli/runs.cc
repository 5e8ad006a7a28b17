// `sortie ps`, `sortie status`, `sortie stop` and `sortie prune`: verbs about existing runs.
#include <CLI/CLI.hpp>
#include <memory>

#include "launcher/cli/verb.h"
#include "launcher/control/prune.h"
#include "launcher/control/show_runs.h"
#include "launcher/control/stop.h"

namespace sortie::launcher {
namespace {

constexpr const char* kPsFooter = R"(Examples:
  sortie ps                active runs
  sortie ps --all          all runs
  sortie ps --json         as JSON (schema sortie/ps/1)
)";

constexpr const char* kStatusFooter = R"(Examples:
  sortie status            each host and rank of the run that was started last
  sortie status k3f9       a run by the end of its id; the beginning works, too
  sortie status --json 20261121-095400-k3f9
)";

constexpr const char* kStopFooter = R"(Examples:
  sortie stop              sends TERM to all ranks of the last run, KILL after runner.grace; waits for the end
  sortie stop --now k3f9   sends KILL at once
)";

constexpr const char* kPruneFooter = R"(Examples:
  sortie prune --older-than 7d --dry-run    shows what would be removed
  sortie prune --keep 20                    removes all ended runs except the latest 20
)";

int print_result(const Result<std::string>& text) {
  return text ? print_text(*text) : print_error(text.error());
}

}  // namespace

void add_run_name(CLI::App& app, std::string& run, std::string& log_dir) {
  run = "last";
  app.add_option("run", run,
                 "Id of a run, its unique beginning or end, or its folder; none = `last`, the run "
                 "that was started last");
  add_log_dir(app, log_dir);
}

void add_log_dir(CLI::App& app, std::string& log_dir) {
  app.add_option("--log-dir", log_dir, "Look only in this logger.log_dir");
}

void add_runs_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program&) {
  struct Options {
    std::string run, log_dir;
    bool all = false, json = false, now = false;
    PruneRequest prune;
  };
  const auto options = std::make_shared<Options>();

  CLI::App* ps = root.add_subcommand("ps", "List runs");
  ps->footer(kPsFooter);
  add_log_dir(*ps, options->log_dir);
  ps->add_flag("--all", options->all, "Include ended runs");
  ps->add_flag("--json", options->json, "As JSON (schema sortie/ps/1)");
  verbs.push_back({ps, [options] {
                     return print_result(ps_text(options->log_dir, options->all, options->json));
                   }});

  CLI::App* status = root.add_subcommand("status", "Show the hosts and ranks of a run");
  status->footer(kStatusFooter);
  add_run_name(*status, options->run, options->log_dir);
  status->add_flag("--json", options->json, "As JSON (schema sortie/status/1)");
  verbs.push_back({status, [options] {
                     return print_result(
                         status_text(options->run, options->log_dir, options->json));
                   }});

  CLI::App* stop = root.add_subcommand("stop", "Stop a run, and wait for its end");
  stop->footer(kStopFooter);
  add_run_name(*stop, options->run, options->log_dir);
  stop->add_flag("--now", options->now, "Kill at once, without runner.grace");
  verbs.push_back(
      {stop, [options] { return stop_run(options->run, options->log_dir, options->now); }});

  CLI::App* pruning = root.add_subcommand("prune", "Remove the folders of ended runs");
  pruning->footer(kPruneFooter);
  add_log_dir(*pruning, options->prune.log_dir);
  pruning->add_option("--keep", options->prune.keep, "Keep the latest N ended runs")
      ->check(CLI::Range(0, 1'000'000));
  pruning->add_option("--older-than", options->prune.older_than,
                      "Only runs that ended longer ago: 12h, 7d");
  pruning->add_flag("--dry-run", options->prune.dry_run,
                    "Show what would be removed; remove nothing");
  verbs.push_back({pruning, [options] { return print_result(prune(options->prune)); }});
}

}  // namespace sortie::launcher
