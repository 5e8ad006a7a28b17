// The command-line options that describe a job, and the checked config that results from them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/config/load.h"

namespace sortie::launcher {

/// Values of the options; empty = not given.
struct JobOptions {
  std::string config;                  // file
  std::vector<std::string> overrides;  // --set
  std::string hosts;                   // --hosts EXPR
  std::string exclude;                 // --exclude EXPR
  std::string groups;                  // --groups FILE
  int slots = 0;                       // --slots
  std::string ssh_config;              // --ssh-config
  std::vector<std::string> program;    // after --
  std::string name;                    // --name, of run
  bool shell = false;                  // --shell: `program` is one line for /bin/sh -c
  bool cordoned_too = false;           // cordoned hosts are not left out
};

/// The words, without "sortie", of a command whose `verb` (check, plan, run) has the same job: all
/// options but --name, which only `run` has.
std::vector<std::string> job_command(std::string_view verb, const JobOptions& options);

/// What the job is loaded for. Determines which rules are checked.
enum class Purpose {
  hosts,  // to connect to its hosts, or to show the config
  start   // to start its ranks: also checks training files, batch sizes for the number of ranks,
          // mounts
};

/// Expands a host expression, with the groups of runner.groups_file.
Result<std::vector<std::string>> expand_hosts(const std::string& expression,
                                              const config::RunnerConfig& runner);

/// Loads and checks the job that the options describe. The origin of a value set by an option is
/// that option. Relative paths stay as written. The error lists every problem of file and options.
Result<config::LoadedJob> load_options(const JobOptions& options, Purpose purpose = Purpose::hosts);

/// Returns the hosts of options.hosts without those of options.exclude, for verbs that need only
/// their names. Groups are those of load_options(): of --groups, else of the user's defaults.
Result<std::vector<std::string>> named_hosts(const JobOptions& options);

/// Makes the job's relative paths absolute: relative to the current folder, "~/" relative to $HOME.
void resolve_job_paths(config::JobConfig& job);

}  // namespace sortie::launcher
