// `sortie check`.
#include <CLI/CLI.hpp>
#include <memory>

#include "launcher/check/check_command.h"
#include "launcher/cli/verb.h"

namespace sortie::launcher {
namespace {

using check::CommOptions;

constexpr const char* kCheckFooter = R"(Examples:
  sortie check job.toml                                checks the hosts of the job
  sortie check --hosts 'gpu[01-64]'                    checks these hosts
  sortie check --hosts 'gpu[01-04]' --slots 8 -- ./my_mpi
  sortie check job.toml --bandwidth 2 --json           as JSON; measures links for 2 s
  sortie check --hosts 'gpu[01-64]' --comm             measures the links of all pairs of hosts
  sortie check job.toml --comm --comm-floor 80Gbit/s   with a minimum rate

Prints the checks that failed (FAIL) or need attention (WARN) on each host, with the reason and what to do; -v also prints those
that passed (PASS), with their values. Nothing is changed. Two things are started on the hosts: `sortie-train devices`, if the
config is one of a training, and with --comm a short job.
Exit code: 0 all passed, 1 warnings, 2 failures (or a wrong command line or config), 3 a link is slow.
)";

std::string rate_error(const std::string& text) {
  const auto rate = check::parse_bit_rate(text);
  return rate ? "" : rate.error().message;
}

}  // namespace

void add_check_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program) {
  const auto options = std::make_shared<JobOptions>();
  const auto how = std::make_shared<check::CheckOptions>();
  const auto seconds = std::make_shared<double>(10);
  CLI::App* check = root.add_subcommand("check", "Check the hosts of a job");
  check->footer(kCheckFooter);
  add_job_options(*check, *options);
  add_shell_flag(*check, *options);
  check->add_flag("--json", how->json, "As JSON (schema sortie/check/1)");
  check
      ->add_option("--bandwidth", how->bandwidth_s,
                   "Measure each host's link for this many seconds")
      ->check(CLI::Range(0.1, 10.0));
  struct CommArguments {
    bool wanted = false;
    std::string ranks = "host", floor;
    std::uint64_t bytes = CommOptions().bytes;
    int seconds = static_cast<int>(CommOptions().limit.count());
  };
  const auto comm = std::make_shared<CommArguments>();
  CLI::Option* wanted = check->add_flag(
      "--comm", comm->wanted,
      "Measure the links of all pairs of hosts, and all in a ring, with a short MPI job");
  check
      ->add_option(
          "--comm-floor", comm->floor,
          "Minimum rate of each link in each direction, 10Gbit/s; default: 0.7 of the median")
      ->check(rate_error)
      ->needs(wanted);
  check->add_option("--comm-ranks", comm->ranks, "One rank per host, or one per slot: host | slots")
      ->check(CLI::IsMember({"host", "slots"}))
      ->needs(wanted);
  check->add_option("--comm-bytes", comm->bytes, "Bytes sent over a link in each direction (16MB)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{1} << 10, std::uint64_t{1} << 32))
      ->needs(wanted);
  check->add_option("--comm-timeout", comm->seconds, "Seconds for the job that measures")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str()
      ->needs(wanted);
  check
      ->add_option("--timeout", *seconds,
                   "Seconds for each stage of a connection, and for an answer")
      ->check(CLI::Range(1.0, 60.0))
      ->capture_default_str();
  verbs.push_back(
      {check,
       [options, how, seconds, comm, &program] {
         options->program = program;
         how->only_hosts = options->config.empty() && program.empty();
         if (comm->wanted) {
           how->comm = CommOptions{
               comm->ranks == "slots", {}, comm->bytes, std::chrono::seconds(comm->seconds)};
           if (!comm->floor.empty()) how->comm->floor_gbit_s = *check::parse_bit_rate(comm->floor);
         }
         how->host_limit = std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000));
         if (how->only_hosts && options->hosts.empty())
           return print_error({ErrorCode::usage,
                               "sortie: neither a config file nor --hosts was given; "
                               "try `sortie check --help`"});
         options->cordoned_too = how->only_hosts;
         // A plan needs a program; `true` is not checked.
         if (how->only_hosts) options->program = {"true"};
         if (how->only_hosts && how->comm) {
           options->program = {program_beside("sortie-train").string()};
           how->only_hosts = false;
         }
         const auto job = plan_job(*options);
         if (!job) return print_error(job.error());
         if (how->comm && job->plan.hosts.size() < 2)
           return print_error(
               {ErrorCode::usage,
                "sortie: check --comm: measures the links between hosts, and there is "
                "only one host; name two or more with --hosts, or omit --comm"});
         print_warnings(job->loaded);
         return check::run_check(*job, *how);
       },
       true});
}

}  // namespace sortie::launcher
