// The verbs of `sortie` and their common options. Each file of this folder adds one verb or a few
// related ones.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/cli/print.h"
#include "common/cli/verb.h"
#include "launcher/plan/reliability.h"
#include "launcher/run/run_command.h"

namespace sortie::launcher {

using cli::print_error;
using cli::Program;
using cli::Verb;

/// Exit codes from here on mean the same for most programs, by convention of shells. What a program
/// means by a lower one is unknown.
inline constexpr int kFirstOfShells = 124;

// The verbs, in the order of `sortie --help`. Each function adds its verb, with sub-verbs, to
// `root`.
void add_run_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_runs_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_follow_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_exec_verb(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_shell_verb(CLI::App& root, std::vector<Verb>& verbs);
void add_ssh_verb(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
/// Inserts the -- before the command of `ssh HOST COMMAND...`, so that it can be omitted.
void mark_ssh_command(const CLI::App& root, std::vector<std::string>& words);
void add_check_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_copy_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_image_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_config_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_sites_verb(CLI::App& root, std::vector<Verb>& verbs);
void add_chaos_verb(CLI::App& root, std::vector<Verb>& verbs);
void add_nodes_verbs(CLI::App& root, std::vector<Verb>& verbs);
void add_connections_verbs(CLI::App& root, std::vector<Verb>& verbs);
void add_explain_verb(CLI::App& root, std::vector<Verb>& verbs);
void add_report_verb(CLI::App& root, std::vector<Verb>& verbs);

/// Adds the options of verbs about the ranks of a job: the config (positional or --config),
/// --slots, and the options of add_host_options().
void add_job_options(CLI::App& app, JobOptions& options);

/// Adds the options that select hosts and configure how to reach them: --hosts, --exclude,
/// --groups, --set, --ssh-config. Does not add --config.
void add_host_options(CLI::App& app, JobOptions& options);

/// Adds those of them that configure how to reach hosts: --groups, --set, --ssh-config.
void add_way_options(CLI::App& app, JobOptions& options);

/// Adds the positional argument HOSTS and --exclude, for verbs about named hosts. Returns HOSTS.
/// `more` is appended to its help.
CLI::Option* add_hosts_argument(CLI::App& app, JobOptions& options, const std::string& more = "");

/// Adds --groups, for verbs that use no config.
void add_groups_option(CLI::App& app, JobOptions& options);

/// Adds only --config, for verbs whose positional arguments mean something else.
void add_config_option(CLI::App& app, JobOptions& options);

/// Adds --shell, for verbs that run a program.
void add_shell_flag(CLI::App& app, JobOptions& options);

/// Adds RUN and --log-dir, which select the run of a verb about an existing run. Default: the last
/// run.
void add_run_name(CLI::App& app, std::string& run, std::string& log_dir);
void add_log_dir(CLI::App& app, std::string& log_dir);

/// Options of `plan` about failures; `wanted`: reliability was requested.
struct AskedReliability {
  bool wanted = false;
  ReliabilityOptions options;
};
void add_reliability_options(CLI::App& app, AskedReliability& asked);

/// Options of `plan` about layouts.
struct AskedSuggestions {
  bool wanted = false;
  std::string rates_file;
  std::optional<double> gflops, host_rate, link_rate, memory, gpu_memory;
};
void add_suggest_options(CLI::App& app, AskedSuggestions& asked);
/// Returns the output of `plan --suggest`, as text or JSON.
Result<std::string> suggested(const PlannedJob& job, const AskedSuggestions& asked, bool json);
bool wants_reliability(const AskedReliability& asked);

/// Options of `plan` about the links between sites.
struct AskedSites {
  std::string rate;                  // "100Mbit/s"
  std::optional<double> round_trip;  // milliseconds
};
void add_site_options(CLI::App& app, AskedSites& asked);
/// Returns the plan of a job with several sites, as text or JSON: the plan of each site, then the
/// links between them. `options`: those that `job` was planned with. `step_time`: seconds, if
/// given.
Result<std::string> plan_of_sites(const PlannedJob& job, const JobOptions& options,
                                  const AskedSites& asked, std::optional<double> step_time,
                                  bool json);

/// Prints all of `text` on stdout; prints an error if that fails (common/cli/print.h). Returns the
/// exit code.
int print_text(std::string_view text);

/// Prints "sortie: warning: ..." for each warning on stderr, unless --quiet was given.
void print_warnings(const config::LoadedJob& loaded);

/// Prints cli::next_steps() on stderr if that is a terminal, for verbs whose output goes to stdout.
/// No-op with --quiet.
void print_next_steps(const CLI::App& root, const std::vector<std::vector<std::string>>& commands);

}  // namespace sortie::launcher
