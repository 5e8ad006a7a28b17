// `sortie nodes ls|cordon|uncordon|test|breaker`.
#include <CLI/CLI.hpp>
#include <memory>

#include "launcher/check/check_command.h"
#include "launcher/cli/verb.h"
#include "launcher/nodes/commands.h"

namespace sortie::launcher {
namespace {

constexpr const char* kNodesFooter = R"(Examples:
  sortie nodes ls                                           cordoned hosts: who, when, why
  sortie nodes cordon gpu07 --reason 'fan is broken'        cordons a host for your runs
  sortie nodes test gpu07                                   checks the host
  sortie nodes uncordon gpu07                               allows runs to use it again
  sortie nodes breaker reset                                allows runs to cordon hosts again

Runs cordon a host automatically after two failures that are blamed on the host (recovery.cordon). If runs would cordon more than two
hosts (with 30 hosts or more: a tenth of them) within ten minutes, the breaker opens: no run cordons hosts until you reset it.
)";

constexpr const char* kNodesLsFooter = R"(Examples:
  sortie nodes ls           cordoned hosts, and the breaker
  sortie nodes ls --json    as JSON (schema sortie/nodes/1)
)";

constexpr const char* kNodesCordonFooter = R"(Examples:
  sortie nodes cordon gpu07 --reason 'fan is broken'
  sortie nodes cordon 'gpu[01-08]' --reason 'rack 3 is serviced on Friday'

Runs that already use the host keep it until they restart. Write names as in configs: two names of one machine are two hosts.
)";

constexpr const char* kNodesUncordonFooter = R"(Examples:
  sortie nodes uncordon gpu07
  sortie nodes uncordon 'gpu[01-08]' --exclude gpu07
)";

constexpr const char* kNodesTestFooter = R"(Examples:
  sortie nodes test gpu07                  runs the checks of `sortie check` on this host
  sortie nodes test @gpu --exclude gpu01   checks a group without one host
  sortie nodes test 'gpu[07,12]' --json    as JSON (schema sortie/check/1)

Exit code: 0 all passed, 1 warnings, 2 failures. No job is started and nothing is changed; a cordoned host stays cordoned.
)";

constexpr const char* kNodesBreakerFooter = R"(Examples:
  sortie nodes breaker          shows whether the breaker is open, since when, and why
  sortie nodes breaker reset    closes the breaker
)";

int print_nodes(const Result<std::string>& text) {
  return text ? print_text(*text) : print_error(text.error());
}

/// Adds HOSTS, --exclude and --groups.
void add_node_names(CLI::App& app, JobOptions& options) {
  add_hosts_argument(app, options)->required();
  add_groups_option(app, options);
}

int test_nodes(JobOptions options, check::CheckOptions how, double seconds) {
  how.only_hosts = true;
  how.host_limit = std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  options.program = {"true"};  // a plan needs a program; this one is not checked
  options.cordoned_too = true;
  const auto job = plan_job(options);
  if (!job) return print_error(job.error());
  print_warnings(job->loaded);
  return check::run_check(*job, how);
}

}  // namespace

void add_nodes_verbs(CLI::App& root, std::vector<Verb>& verbs) {
  struct Options {
    JobOptions job;
    check::CheckOptions check;
    double seconds = 10;
    std::string reason, action;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* nodes = root.add_subcommand("nodes", "Cordoned hosts, which no run uses");
  nodes->footer(kNodesFooter);
  nodes->require_subcommand(1);

  CLI::App* ls = nodes->add_subcommand("ls", "List cordoned hosts, and the breaker");
  ls->footer(kNodesLsFooter);
  ls->add_flag("--json", options->json, "As JSON (schema sortie/nodes/1)");
  verbs.push_back({ls, [options] { return print_nodes(list_nodes(options->json)); }});

  CLI::App* cordon = nodes->add_subcommand("cordon", "Keep runs from hosts");
  cordon->footer(kNodesCordonFooter);
  add_node_names(*cordon, options->job);
  cordon
      ->add_option("--reason", options->reason,
                   "Reason, shown when a job is refused because of this host")
      ->required();
  verbs.push_back({cordon, [options] {
                     const auto hosts = named_hosts(options->job);
                     if (!hosts) return print_error(hosts.error());
                     return print_nodes(cordon_nodes(*hosts, options->reason));
                   }});

  CLI::App* uncordon = nodes->add_subcommand("uncordon", "Allow runs to use hosts again");
  uncordon->footer(kNodesUncordonFooter);
  add_node_names(*uncordon, options->job);
  verbs.push_back({uncordon, [options] {
                     const auto hosts = named_hosts(options->job);
                     if (!hosts) return print_error(hosts.error());
                     return print_nodes(uncordon_nodes(*hosts));
                   }});

  CLI::App* test = nodes->add_subcommand("test", "Check hosts, cordoned or not");
  test->footer(kNodesTestFooter);
  add_hosts_argument(*test, options->job)->required();
  add_config_option(*test, options->job);
  add_way_options(*test, options->job);
  test->add_flag("--json", options->check.json, "As JSON (schema sortie/check/1)");
  test->add_option("--timeout", options->seconds,
                   "Seconds for each stage of a connection, and for an answer")
      ->check(CLI::Range(1.0, 60.0))
      ->capture_default_str();
  verbs.push_back(
      {test, [options] { return test_nodes(options->job, options->check, options->seconds); }});

  CLI::App* breaker = nodes->add_subcommand(
      "breaker", "The circuit breaker that stops runs from cordoning too many hosts");
  breaker->footer(kNodesBreakerFooter);
  breaker->add_option("action", options->action, "reset: close it; none: show it")
      ->check(CLI::IsMember({"reset"}));
  verbs.push_back({breaker, [options] {
                     return print_nodes(options->action.empty() ? show_breaker() : reset_breaker());
                   }});
}

}  // namespace sortie::launcher
