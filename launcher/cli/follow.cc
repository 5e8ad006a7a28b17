// `sortie attach` and `sortie logs`: show the output of the ranks of a run.
#include <CLI/CLI.hpp>
#include <memory>

#include "launcher/cli/verb.h"
#include "launcher/control/adopt.h"
#include "launcher/control/attach.h"
#include "launcher/control/show_logs.h"

namespace sortie::launcher {
namespace {

constexpr const char* kAttachFooter = R"(Examples:
  sortie attach                      live output of the last run, from now on
  sortie attach --from-start k3f9    all earlier output, then live
  sortie attach --adopt k3f9         starts a new supervisor for a run whose supervisor was killed

Exit code: that of the run. Ctrl-C detaches (exit code 130), and the run continues. Several terminals can attach to a run.
)";

constexpr const char* kLogsFooter = R"(Examples:
  sortie logs                                output of all ranks of the last run
  sortie logs -f --rank 0,8-15               output of some ranks, and new output as it arrives
  sortie logs --host 'gpu[01-04]' --since 10m --grep 'nan|inf' k3f9
)";

}  // namespace

void add_follow_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program&) {
  const auto request = std::make_shared<AttachRequest>();
  CLI::App* attach_verb = root.add_subcommand("attach", "Show a run live; exit with its exit code");
  attach_verb->footer(kAttachFooter);
  add_run_name(*attach_verb, request->run, request->log_dir);
  attach_verb->add_flag("--from-start", request->from_start, "Start with all earlier output");
  const auto take_over = std::make_shared<bool>(false);
  attach_verb->add_flag("--adopt", *take_over,
                        "Start a new supervisor for the held ranks of a run whose supervisor died");
  verbs.push_back({attach_verb, [request, take_over] {
                     return *take_over ? adopt(*request) : attach(*request);
                   }});

  const auto logs = std::make_shared<LogsRequest>();
  CLI::App* logs_verb = root.add_subcommand("logs", "Show the output of the ranks of a run");
  logs_verb->footer(kLogsFooter);
  add_run_name(*logs_verb, logs->run, logs->log_dir);
  logs_verb->add_option("--rank", logs->ranks, "Only these ranks: 0,8-15");
  logs_verb->add_option("--host", logs->hosts, "Only ranks of these hosts: 'gpu[01-04]', @group");
  logs_verb->add_option("--site", logs->site, "Only ranks of this site");
  logs_verb->add_option("--since", logs->since,
                        "Only output since: 10m, 14:30, '2026-11-21 14:30'");
  logs_verb->add_option("--grep", logs->grep, "Only lines with this extended regular expression");
  logs_verb->add_option("--attempt", logs->attempt, "Of this attempt")
      ->check(CLI::Range(1, 1'000'000));
  logs_verb->add_flag("-f,--follow", logs->follow, "Follow until the run ends");
  verbs.push_back({logs_verb, [logs] { return show_logs(*logs); }});
}

}  // namespace sortie::launcher
