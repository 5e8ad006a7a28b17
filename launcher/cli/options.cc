// Common options of verbs, which select a job, hosts or a run; printing.
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "common/base/print_stderr.h"
#include "common/base/printable.h"
#include "common/cli/tree.h"
#include "common/config/hostlist.h"
#include "launcher/cli/verb.h"
#include "launcher/console/output_options.h"

namespace sortie::launcher {

int print_text(std::string_view text) {
  return cli::print_text("sortie", text);
}

void print_warnings(const config::LoadedJob& loaded) {
  if (output_options().quiet) return;
  for (const std::string& warning : loaded.warnings)
    print_stderr("sortie: warning: {}\n", printable(warning));
}

void print_next_steps(const CLI::App& root, const std::vector<std::vector<std::string>>& commands) {
  if (output_options().quiet || ::isatty(STDERR_FILENO) != 1) return;
  const std::string text = cli::next_steps(root, commands);
  if (!text.empty()) print_stderr("{}\n", printable_lines(text));
}

void add_config_option(CLI::App& app, JobOptions& options) {
  app.add_option("--config", options.config, "Config file (TOML) of a job: its hosts and SSH keys");
}

void add_shell_flag(CLI::App& app, JobOptions& options) {
  app.add_flag("--shell", options.shell, "The program is one line for /bin/sh -c");
}

namespace {

constexpr const char* kHostsHelp = "Hosts: 'gpu[01-04],h7,@group,!gpu03'";

CLI::Option* add_exclude_option(CLI::App& app, JobOptions& options, const std::string& like) {
  return app.add_option("--exclude", options.exclude, "Hosts to leave out, written like " + like);
}

}  // namespace

CLI::Option* add_hosts_argument(CLI::App& app, JobOptions& options, const std::string& more) {
  CLI::Option* hosts = app.add_option("hosts", options.hosts, kHostsHelp + more);
  add_exclude_option(app, options, "the hosts")->needs(hosts);
  return hosts;
}

void add_groups_option(CLI::App& app, JobOptions& options) {
  app.add_option(
      "--groups", options.groups,
      "Groups file: gpu = \"gpu[01-64]\"; overrides runner.groups_file of your defaults, "
      "default ~/.config/sortie/groups.toml");
}

void add_host_options(CLI::App& app, JobOptions& options) {
  app.add_option("--hosts", options.hosts, std::string(kHostsHelp) + "; overrides runner.hosts");
  add_exclude_option(app, options, "--hosts");
  add_way_options(app, options);
}

void add_way_options(CLI::App& app, JobOptions& options) {
  app.add_option("--groups", options.groups,
                 "Groups file: gpu = \"gpu[01-64]\"; overrides runner.groups_file, default "
                 "~/.config/sortie/groups.toml");
  app.add_option("--set", options.overrides, "Override a key: --set section.key=value (repeatable)")
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--ssh-config", options.ssh_config,
                 "OpenSSH client config; overrides runner.ssh.config_file");
}

void add_job_options(CLI::App& app, JobOptions& options) {
  app.add_option("config,--config", options.config, "Config file (TOML)");
  add_host_options(app, options);
  app.add_option("--slots", options.slots, "Slots of hosts without slots=")
      ->check(CLI::Range(1, config::kMaxSlots));
}

}  // namespace sortie::launcher
