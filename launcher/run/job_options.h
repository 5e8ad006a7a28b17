// The options that name a job on the command line, and the checked config that they come to.
#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/load.h"

namespace sortie::launcher {

/// What the command line says; empty = not given.
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
  bool cordoned_too = false;           // hosts are looked at, whatever is known of them
};

/// What the job is loaded for, which decides the rules that it must keep.
enum class Purpose {
  hosts,  // to reach its hosts, or to show it
  start   // to start its ranks: files to train on, batch sizes for the number of ranks, mounts
};

/// The hosts of an expression, with the groups of runner.groups_file.
Result<std::vector<std::string>> expand_hosts(const std::string& expression,
                                              const config::RunnerConfig& runner);

/// The job that the options describe, checked; what an option sets has it as its origin. Relative
/// paths are as they were written. The error lists every problem of file and options.
Result<config::LoadedJob> load_options(const JobOptions& options, Purpose purpose = Purpose::hosts);

/// Makes the job's relative paths absolute against the current folder, and "~/" against $HOME.
void resolve_job_paths(config::JobConfig& job);

}  // namespace sortie::launcher
