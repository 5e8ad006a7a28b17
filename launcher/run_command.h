// `sortie run`: from a checked job to its end, with everything a person sees.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/load.h"
#include "launcher/plan.h"

namespace sortie::launcher {

/// What the command line of run and plan says; empty = not given.
struct JobOptions {
  std::string config;                  // file
  std::vector<std::string> overrides;  // --set
  std::string hosts;                   // --hosts EXPR
  int slots = 0;                       // --slots
  std::string ssh_config;              // --ssh-config
  std::vector<std::string> program;    // after --
};

/// The job that the options describe, checked; what an option sets has it as its origin.
Result<config::LoadedJob> load_options(const JobOptions& options);

/// The same with absolute paths, and its plan.
struct PlannedJob {
  config::LoadedJob loaded;
  LaunchPlan plan;
};
Result<PlannedJob> plan_job(const JobOptions& options);

/// The runner that goes to the hosts: beside this program, or what SORTIE_RUNNER names.
std::filesystem::path runner_path();

/// Runs it and returns the exit code.
int run_job(const PlannedJob& job);

}  // namespace sortie::launcher
