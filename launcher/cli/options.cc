// What verbs have in common: options that name a job, and printing.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>

#include "common/base/exit_code.h"
#include "common/config/hostlist.h"
#include "launcher/cli/verb.h"
#include "launcher/console/console.h"

namespace sortie::launcher {

int print_error(const Error& error) {
  fmt::print(stderr, "{}\n", printable_lines(error.message));
  return exit_code_for(error.code);
}

int print_text(std::string_view text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (written) return kExitOk;
  return print_error(os_error(errno, "sortie: write to stdout"));
}

void add_job_options(CLI::App& app, JobOptions& options) {
  app.add_option("config", options.config, "Config file (TOML)");
  app.add_option("--set", options.overrides, "Override a key: --set section.key=value (repeatable)")
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--hosts", options.hosts,
                 "Hosts: 'gpu[01-04],h7,@group,!gpu03'; overrides runner.hosts");
  app.add_option("--groups", options.groups, "Groups file; overrides runner.groups_file");
  app.add_option("--slots", options.slots, "Slots of every host that names none")
      ->check(CLI::Range(1, config::kMaxSlots));
  app.add_option("--ssh-config", options.ssh_config,
                 "OpenSSH client config; overrides runner.ssh.config_file");
}

}  // namespace sortie::launcher
