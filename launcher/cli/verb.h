// The verbs of `sortie`, and what they have in common. Each file of this folder adds one verb or a
// few.
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

// The verbs, in the order of `sortie --help`. Each adds itself (and its own sub-verbs) to `root`.
void add_run_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_runs_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_follow_verbs(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_exec_verb(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
void add_shell_verb(CLI::App& root, std::vector<Verb>& verbs);
void add_ssh_verb(CLI::App& root, std::vector<Verb>& verbs, const Program& program);
/// `ssh HOST COMMAND...`, as people are used to it: puts the -- before the command.
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

/// How every verb about a job's ranks names the job: the config, by its place or by --config, and
/// what add_host_options() adds; --slots.
void add_job_options(CLI::App& app, JobOptions& options);

/// How every verb says which hosts, and how they are reached: --hosts, --exclude, --groups, --set,
/// --ssh-config. Without `config` the caller adds its own --config.
void add_host_options(CLI::App& app, JobOptions& options);

/// The part of them about the way to hosts: --groups, --set, --ssh-config.
void add_way_options(CLI::App& app, JobOptions& options);

/// --config alone, for verbs whose places stand for something else.
void add_config_option(CLI::App& app, JobOptions& options);

/// --shell, for verbs that take a program.
void add_shell_flag(CLI::App& app, JobOptions& options);

/// RUN and --log-dir: how every verb about a run that was started names it. No RUN is the last one.
void add_run_name(CLI::App& app, std::string& run, std::string& log_dir);
void add_log_dir(CLI::App& app, std::string& log_dir);

/// Options of `plan` about failures, and whether any of them was given.
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
/// What `plan --suggest` answers, as text or JSON.
Result<std::string> suggested(const PlannedJob& job, const AskedSuggestions& asked, bool json);
bool wants_reliability(const AskedReliability& asked);

/// Options of `plan` about the links between sites.
struct AskedSites {
  std::string rate;                  // "100Mbit/s"
  std::optional<double> round_trip;  // milliseconds
};
void add_site_options(CLI::App& app, AskedSites& asked);
/// The plan of a job with several sites: each site's own, then what lies between them, as text or
/// JSON. `step_time`: seconds, where it was given.
Result<std::string> plan_of_sites(const PlannedJob& job, const AskedSites& asked,
                                  std::optional<double> step_time, bool json);

/// All of `text` on stdout, or an error (common/cli/print.h).
int print_text(std::string_view text);

/// "sortie: warning: ..." for each, on stderr, unless --quiet was given.
void print_warnings(const config::LoadedJob& loaded);

/// cli::next_steps on stderr, for a person at a terminal; for verbs whose answer goes to stdout.
void print_next_steps(const CLI::App& root, const std::vector<std::string>& lines);

}  // namespace sortie::launcher
