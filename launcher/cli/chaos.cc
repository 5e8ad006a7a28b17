// `sortie chaos`.
#include "launcher/chaos/chaos_command.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "launcher/cli/verb.h"

namespace sortie::launcher {
namespace {

constexpr const char* kChaosFooter = R"(Examples:
  sortie chaos last --every 60s --faults kill,stop     kills or stops a random rank each minute
  sortie chaos k3f9 --every 20s --count 10 --yes       ten faults, without confirmation
  sortie chaos k3f9 --faults kill --seed 7             the same faults for the same ranks

Faults:
  kill         SIGKILL to a rank
  term         SIGTERM to a rank
  stop         SIGSTOP to a rank: it makes no progress until the watchdog ends it
  link         cuts the link between the launcher and the host of a rank for --link-down; links between hosts stay up
  supervisor   SIGKILL to the supervisor of the run, on this machine

Only processes of the run receive signals. Signals do not reach ranks in containers. The command ends when the run ends.
)";

}  // namespace

void add_chaos_verb(CLI::App& root, std::vector<Verb>& verbs) {
  const auto options = std::make_shared<ChaosOptions>();
  CLI::App* chaos = root.add_subcommand("chaos", "Inject random faults into your own run");
  chaos->footer(kChaosFooter);
  add_run_name(*chaos, options->run, options->log_dir);
  chaos->add_option("--every", options->every, "Time between two faults")->capture_default_str();
  chaos->add_option("--faults", options->faults, "Of these: kill, term, stop, link, supervisor")
      ->capture_default_str();
  chaos->add_option("--link-down", options->link_down, "How long a link is cut")
      ->capture_default_str();
  chaos->add_option("--seed", options->seed, "Seed of the random faults");
  chaos->add_option("--count", options->count, "Number of faults; 0 = until the run ends")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  chaos->add_flag("--yes", options->yes, "Do not ask");
  verbs.push_back({chaos, [options] { return run_chaos(*options); }});
}

}  // namespace sortie::launcher
