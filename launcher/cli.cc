#include "launcher/cli.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "common/config/describe.h"
#include "common/config/text.h"
#include "launcher/run_command.h"

namespace sortie::launcher {
namespace {

constexpr const char* kExamples = R"(Examples:
  sortie run configs/quickstart.toml                        train on this machine
  sortie run --hosts 'gpu[01-04]' --slots 8 -- ./my_mpi     start an MPI program on four hosts
  sortie plan job.toml --set topology.micro_batch_size=8    what would run where
  sortie config init > job.toml                             a commented config to start from
)";

int print_error(const Error& error) {
  fmt::print(stderr, "{}\n", error.message);
  return exit_code_for(error.code);
}

/// All of it or an error: a full disk must not leave half a config behind an exit code of 0.
int print(std::string_view text) {
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
  app.add_option("--hosts", options.hosts, "Hosts: 'gpu[01-04],h7'; overrides runner.hosts");
  app.add_option("--slots", options.slots, "Slots of every host that names none")
      ->check(CLI::Range(1, config::kMaxSlots));
  app.add_option("--ssh-config", options.ssh_config,
                 "OpenSSH client config; overrides runner.ssh.config_file");
}

/// A job needs a config or a program.
Result<PlannedJob> planned(const JobOptions& options) {
  if (options.config.empty() && options.program.empty())
    return fail(ErrorCode::usage,
                "sortie: neither a config file nor a program was given; try `sortie run --help`");
  return plan_job(options);
}

/// "did you mean" for a verb or flag that does not exist.
std::string suggestion(const CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> verbs;
  const CLI::App* level = &app;
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    verbs.clear();
    for (const CLI::App* sub : level->get_subcommands([](const CLI::App*) { return true; }))
      verbs.push_back(sub->get_name());
    if (!argument.starts_with("-")) {
      const auto known = level->get_subcommands(
          [&](const CLI::App* candidate) { return candidate->get_name() == argument; });
      const CLI::App* sub = known.empty() ? nullptr : known.front();
      if (sub) {
        level = sub;
        continue;
      }
      if (verbs.empty()) continue;
      const std::string_view near = config::nearest(argument, {verbs.begin(), verbs.end()});
      return near.empty() ? "" : fmt::format("did you mean `{}`?", near);
    }
    std::vector<std::string> flags;
    for (const CLI::Option* option : level->get_options())
      for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    const std::string name = argument.substr(0, argument.find('='));
    if (std::ranges::find(flags, name) == flags.end())
      if (const auto near = config::nearest(name, {flags.begin(), flags.end()}); !near.empty())
        return fmt::format("did you mean `{}`?", near);
  }
  return "";
}

}  // namespace

int run_cli(int argc, char** argv) {
  log::init("sortie", log::Level::warning);
  CLI::App app{
      "Sortie launches and supervises training, and any MPI or torchrun-style program, over SSH."};
  app.footer(kExamples);
  app.set_version_flag("--version", "sortie " SORTIE_VERSION);
  app.require_subcommand(1);

  JobOptions options;
  bool json = false, origin = false;
  CLI::App* run = app.add_subcommand("run", "Start a job on its hosts and see it through");
  add_job_options(*run, options);
  run->footer("Everything after -- is the program and its arguments, passed on byte for byte.\n\n" +
              std::string(kExamples));
  CLI::App* plan = app.add_subcommand("plan", "Show what would be started where; touches no host");
  add_job_options(*plan, options);
  plan->add_flag("--json", json, "As JSON (schema sortie/plan/1)");
  CLI::App* config = app.add_subcommand("config", "Show, describe or start a config");
  config->require_subcommand(1);
  CLI::App* show = config->add_subcommand("show", "The resolved config of a job");
  add_job_options(*show, options);
  show->add_flag("--origin", origin, "With the place that each value comes from");
  CLI::App* schema = config->add_subcommand("schema", "JSON schema of the config");
  CLI::App* init = config->add_subcommand("init", "A commented config with every key");
  CLI::App* reference = config->add_subcommand("reference", "The reference page, in Markdown");

  // The program is cut off first: no flag of its own can be taken for one of ours.
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto dashes = std::ranges::find(arguments, "--");
  if (dashes != arguments.end()) options.program.assign(dashes + 1, arguments.end());
  const bool has_program = dashes != arguments.end();
  arguments.erase(dashes, arguments.end());
  const std::vector<std::string> given = arguments;
  std::ranges::reverse(arguments);  // CLI11 takes the last element first
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    const std::string near = suggestion(app, given);
    fmt::print(stderr, "sortie: {}{}{}\n", error.what(), near.empty() ? "; try --help" : "; ",
               near);
    return kExitUsage;
  }
  if (has_program && options.program.empty()) {
    fmt::print(stderr, "sortie: nothing follows --; a program is expected there\n");
    return kExitUsage;
  }

  if (*schema) return print(config::json_schema());
  if (*init) return print(config::init_text());
  if (*reference) return print(config::reference_markdown());
  if (*show) {
    const auto loaded = load_options(options);
    return loaded ? print(config::show(*loaded, origin)) : print_error(loaded.error());
  }
  const auto job = planned(options);
  if (!job) return print_error(job.error());
  if (*plan) return print(json ? plan_json_text(job->plan) : plan_text(job->plan));
  return run_job(*job);
}

}  // namespace sortie::launcher
