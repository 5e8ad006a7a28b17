#include "launcher/cli/cli.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "common/base/check.h"
#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "launcher/cli/tree.h"

namespace sortie::launcher {
namespace {

constexpr const char* kExamples = R"(Examples:
  sortie run configs/quickstart.toml                        train on this machine
  sortie run --hosts 'gpu[01-04]' --slots 8 -- ./my_mpi     start an MPI program on four hosts
  sortie run --detach job.toml; sortie attach last          the same, apart from this terminal
  sortie plan job.toml --set topology.micro_batch_size=8    what would run where
  sortie exec --hosts 'gpu[01-64]' --fold -- uname -r       one command on many hosts
  sortie check job.toml                                     are the hosts fit for it?
  sortie config init > job.toml                             a commented config to start from
)";

/// The option or place of `app` whose value is empty, as in `--hosts "$HOSTS"` with no such
/// variable: what is meant is not known, and to take it for "not given" would run on this machine.
/// "" when there is none.
std::string empty_value(const CLI::App* app) {
  for (; app != nullptr; app = app->get_parent())
    for (const CLI::Option* option : app->get_options())
      if (option->get_items_expected_max() > 0 &&
          std::ranges::find(option->results(), "") != option->results().end())
        return option->get_name();
  return "";
}

}  // namespace

int run_cli(int argc, char** argv) {
  log::init("sortie", log::Level::warning);
  CLI::App app{"Launch and supervise training, and any MPI or torchrun-style program, over SSH",
               "sortie"};
  app.footer(kExamples);
  app.set_version_flag("--version", "sortie " SORTIE_VERSION);
  app.require_subcommand(1);

  Program program;
  std::vector<Verb> verbs;
  add_run_verbs(app, verbs, program);
  add_runs_verbs(app, verbs, program);
  add_follow_verbs(app, verbs, program);
  add_exec_verb(app, verbs, program);
  add_check_verbs(app, verbs, program);
  add_copy_verbs(app, verbs, program);
  add_image_verbs(app, verbs, program);
  add_config_verbs(app, verbs, program);
  add_report_verb(app, verbs);
  add_explain_verb(app, verbs);
  add_man_verb(app, verbs);
  add_completion_verbs(app, verbs, program);
  add_global_flags(app);
  set_help(app, verbs);

  // The program is cut off first: no flag of its own can be taken for one of ours.
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto dashes = std::ranges::find(arguments, "--");
  const bool has_program = dashes != arguments.end();
  if (has_program) program.assign(dashes + 1, arguments.end());
  arguments.erase(dashes, arguments.end());
  const std::vector<std::string> given = arguments;
  std::ranges::reverse(arguments);  // CLI11 takes the last element first
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    const std::string near = did_you_mean(app, given);
    return print_error({ErrorCode::usage, fmt::format("sortie: {}; {}", error.what(),
                                                      near.empty() ? "try --help" : near)});
  }
  const auto verb = std::ranges::find_if(verbs, [](const Verb& v) { return v.app->parsed(); });
  SORTIE_CHECK(verb != verbs.end());
  if (const std::string name = empty_value(verb->app); !name.empty())
    return print_error(
        {ErrorCode::usage,
         fmt::format("sortie: {}: the value is empty; give it one, or leave it out", name)});
  if (has_program && !verb->takes_program) {
    fmt::print(stderr, "sortie: `{}` takes no program after --\n", verb->app->get_name());
    return kExitUsage;
  }
  if (has_program && program.empty()) {
    fmt::print(stderr, "sortie: nothing follows --; a program is expected there\n");
    return kExitUsage;
  }
  apply_global_flags(*verb->app);
  return verb->run();
}

}  // namespace sortie::launcher
