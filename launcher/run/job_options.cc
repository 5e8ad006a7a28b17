#include "launcher/run/job_options.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>

#include "common/base/shell_text.h"
#include "common/config/container.h"
#include "common/config/fields.h"
#include "common/config/hostgroups.h"
#include "common/config/hostlist.h"
#include "common/config/outer.h"
#include "common/config/user_file.h"

namespace sortie::launcher {

using config::Violation;
using Violations = std::vector<Violation>;

void resolve_job_paths(config::JobConfig& job) {
  std::error_code error;
  const char* home = std::getenv("HOME");
  config::resolve_paths(job, std::filesystem::current_path(error).string(), home ? home : "/");
}

namespace {

/// Loads the groups file only if the expression names a group.
Result<config::HostGroups> groups_for(const std::string& expression,
                                      const config::RunnerConfig& runner) {
  if (!config::mentions_group(expression)) return config::HostGroups();
  config::JobConfig paths;
  paths.runner.groups_file = runner.groups_file;
  resolve_job_paths(paths);
  return config::HostGroups::load(paths.runner.groups_file);
}

Result<std::vector<config::HostSlots>> hosts_of(const config::JobConfig& job) {
  config::JobConfig resolved = job;
  resolve_job_paths(resolved);
  return config::job_hosts(resolved.runner);
}

/// The job's hosts without those of --exclude, as lines.
Result<std::vector<std::string>> hosts_without(const config::JobConfig& job,
                                               const std::string& exclude) {
  SORTIE_ASSIGN_OR_RETURN(std::vector<config::HostSlots> hosts, hosts_of(job));
  SORTIE_ASSIGN_OR_RETURN(const config::HostGroups groups, groups_for(exclude, job.runner));
  std::vector<std::string> names;
  for (const config::HostSlots& host : hosts) names.push_back(host.name);
  SORTIE_ASSIGN_OR_RETURN(const auto left, config::exclude_hosts(names, exclude, &groups));
  const std::set<std::string> kept(left.begin(), left.end());
  std::erase_if(hosts, [&](const config::HostSlots& host) { return !kept.contains(host.name); });
  return config::host_lines(hosts);
}

/// Applies the options to the config. Returns the errors in the options.
Violations apply(const JobOptions& options, config::LoadedJob& loaded) {
  Violations broken;
  config::RunnerConfig& runner = loaded.job.runner;
  config::Origins& origins = loaded.origins;
  const auto use_hosts = [&](const char* option, Result<std::vector<std::string>> hosts) {
    if (!hosts) {
      broken.push_back({option, {option}, std::move(hosts).error().message});
      return;
    }
    runner.hosts = std::move(*hosts);
    runner.hosts_file.clear();
    origins["runner.hosts"] = origins["runner.hosts_file"] = option;
  };
  if (!options.groups.empty()) {
    runner.groups_file = options.groups;
    origins["runner.groups_file"] = "--groups";
  }
  if (options.slots > 0) {
    runner.default_slots = options.slots;
    origins["runner.default_slots"] = "--slots";
  }
  if (!options.hosts.empty()) use_hosts("--hosts", expand_hosts(options.hosts, runner));
  if (!options.exclude.empty() && broken.empty())
    use_hosts("--exclude", hosts_without(loaded.job, options.exclude));
  if (!options.ssh_config.empty()) {
    runner.ssh.config_file = options.ssh_config;
    origins["runner.ssh.config_file"] = "--ssh-config";
  }
  if (!options.program.empty()) {
    runner.program = options.program;
    if (options.shell) runner.program = {"/bin/sh", "-c", options.program.front()};
    origins["runner.program"] = "command line";
  }
  return broken;
}

/// Checks what make_plan() would reject, with the places in the file. If the hosts are unknown,
/// checks only what does not depend on them.
Violations rules_of_start(const config::LoadedJob& loaded, bool hosts_known) {
  Violations broken;
  Result<std::vector<config::HostSlots>> hosts;
  if (hosts_known) hosts = hosts_of(loaded.job);
  if (!hosts)
    broken.push_back({"R1", {"runner.hosts", "runner.hosts_file"}, hosts.error().message});
  if (!loaded.job.runner.program.empty()) return broken;  // not a job of sortie-train
  config::JobConfig job = loaded.job;
  resolve_job_paths(job);
  // With a wrong runner.program it is not known whether this is a job of sortie-train: no rule that
  // names that key is then reported.
  const auto add = [&broken](Violations more) {
    for (Violation& violation : more) {
      violation.keys.emplace_back("runner.program");
      broken.push_back(std::move(violation));
    }
  };
  add(config::validate_training(job));
  add(config::check_mounted(job));
  std::int64_t ranks = 0;
  if (hosts) add(config::check_sites(job, *hosts));
  if (hosts && config::sites_of(*hosts).empty())
    for (const config::HostSlots& host : *hosts)
      ranks += static_cast<std::int64_t>(host.slots.size());
  if (ranks > 0) add(config::resolve_batch(job.topology, ranks).violations);
  return broken;
}

Result<> check_program(const JobOptions& options) {
  if (!options.program.empty() && options.program.front().empty())
    return fail(ErrorCode::usage, "sortie: the program after -- has an empty name");
  if (options.shell && options.program.size() != 1)
    return fail(ErrorCode::usage,
                fmt::format("sortie: --shell takes the command line as one argument, not {}; "
                            "quote it: --shell -- 'df -h | tail -1'",
                            options.program.size()));
  return {};
}

/// Detects a program or a host expression in the place of the config file.
Result<> check_config_place(const JobOptions& options) {
  const std::string& file = options.config;
  if (file.empty() || file.ends_with(".toml")) return {};
  struct stat info {};
  const bool there = ::stat(file.c_str(), &info) == 0;
  if (there && S_ISREG(info.st_mode) && ::access(file.c_str(), X_OK) == 0)
    return fail(ErrorCode::usage,
                fmt::format("sortie: {}: is a program, not a config; a program comes after --, as "
                            "in `sortie run -- {}`",
                            file, shell_word(file)));
  if (!there && file.find_first_of("[@,!") != file.npos)
    return fail(ErrorCode::usage,
                fmt::format("sortie: {}: no such config; did you mean --hosts {}?", file,
                            shell_word(file)));
  return {};
}

}  // namespace

std::vector<std::string> job_command(std::string_view verb, const JobOptions& options) {
  std::vector<std::string> words = {std::string(verb)};
  if (!options.config.empty()) words.push_back(options.config);
  const auto add = [&words](const char* name, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {name, value});
  };
  add("--hosts", options.hosts);
  add("--exclude", options.exclude);
  add("--groups", options.groups);
  if (options.slots > 0) add("--slots", std::to_string(options.slots));
  add("--ssh-config", options.ssh_config);
  for (const std::string& setting : options.overrides) add("--set", setting);
  if (options.shell) words.emplace_back("--shell");
  if (options.program.empty()) return words;
  words.emplace_back("--");
  words.insert(words.end(), options.program.begin(), options.program.end());
  return words;
}

Result<std::vector<std::string>> expand_hosts(const std::string& expression,
                                              const config::RunnerConfig& runner) {
  SORTIE_ASSIGN_OR_RETURN(const config::HostGroups groups, groups_for(expression, runner));
  return config::expand_host_expression(expression, &groups);
}

Result<config::LoadedJob> load_options(const JobOptions& options, Purpose purpose) {
  SORTIE_TRY(check_program(options));
  SORTIE_TRY(check_config_place(options));
  const auto amend = [&](config::LoadedJob& loaded) {
    Violations broken = apply(options, loaded);
    if (purpose != Purpose::start) return broken;
    const Violations more = rules_of_start(loaded, /*hosts_known=*/broken.empty());
    broken.insert(broken.end(), more.begin(), more.end());
    return broken;
  };
  SORTIE_ASSIGN_OR_RETURN(const std::optional<config::UserFile> file, config::read_user_file());
  const config::UserFile* user = file ? &*file : nullptr;
  return options.config.empty()
             ? config::load_job_text("", "command line", options.overrides, amend, user)
             : config::load_job(options.config, options.overrides, amend, user);
}

Result<std::vector<std::string>> named_hosts(const JobOptions& options) {
  JobOptions how = options;
  how.hosts.clear();
  how.exclude.clear();
  SORTIE_ASSIGN_OR_RETURN(const config::LoadedJob loaded, load_options(how));
  const config::RunnerConfig& runner = loaded.job.runner;
  SORTIE_ASSIGN_OR_RETURN(const auto hosts, expand_hosts(options.hosts, runner));
  if (options.exclude.empty()) return hosts;
  SORTIE_ASSIGN_OR_RETURN(const config::HostGroups groups, groups_for(options.exclude, runner));
  return config::exclude_hosts(hosts, options.exclude, &groups);
}

}  // namespace sortie::launcher
