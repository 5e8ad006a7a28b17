// `sortie check`.
#include <CLI/CLI.hpp>
#include <memory>

#include "launcher/check/check_command.h"
#include "launcher/cli/verb.h"

namespace sortie::launcher {
namespace {

constexpr const char* kCheckFooter = R"(Examples:
  sortie check job.toml                                can this job run on its hosts?
  sortie check --hosts 'gpu[01-64]'                    are these hosts well?
  sortie check --hosts 'gpu[01-04]' --slots 8 -- ./my_mpi
  sortie check job.toml --bandwidth 2 --json           for a program, links measured for 2 s

PASS, WARN and FAIL of each check on each host, the reason and what to do. With -v also what
passed, and its values. Nothing is started or changed. Exit code: 0 all passed, 1 warnings, 2 failures (or a wrong command line or config).
)";

}  // namespace

void add_check_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program) {
  const auto options = std::make_shared<JobOptions>();
  const auto how = std::make_shared<check::CheckOptions>();
  const auto seconds = std::make_shared<double>(10);
  CLI::App* check = root.add_subcommand("check", "See whether hosts are fit for a job");
  check->footer(kCheckFooter);
  add_job_options(*check, *options);
  add_shell_flag(*check, *options);
  check->add_flag("--json", how->json, "As JSON (schema sortie/check/1)");
  check->add_option("--bandwidth", how->bandwidth_s, "Measure each host's link for so many seconds")
      ->check(CLI::Range(0.1, 10.0));
  check
      ->add_option("--timeout", *seconds,
                   "Seconds for each stage of a connection, and for an answer")
      ->check(CLI::Range(1.0, 60.0))
      ->capture_default_str();
  verbs.push_back({check,
                   [options, how, seconds, &program] {
                     options->program = program;
                     how->only_hosts = options->config.empty() && program.empty();
                     how->host_limit =
                         std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000));
                     if (how->only_hosts && options->hosts.empty())
                       return print_error({ErrorCode::usage,
                                           "sortie: neither a config file nor --hosts was given; "
                                           "try `sortie check --help`"});
                     // A plan needs a program; of this one nothing is asked.
                     if (how->only_hosts) options->program = {"true"};
                     const auto job = plan_job(*options);
                     if (!job) return print_error(job.error());
                     print_warnings(job->loaded);
                     return check::run_check(*job, *how);
                   },
                   true});
}

}  // namespace sortie::launcher
