#include "launcher/cli/cli.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "common/base/check.h"
#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "common/config/text.h"
#include "launcher/cli/verb.h"

namespace sortie::launcher {
namespace {

constexpr const char* kExamples = R"(Examples:
  sortie run configs/quickstart.toml                        train on this machine
  sortie run --hosts 'gpu[01-04]' --slots 8 -- ./my_mpi     start an MPI program on four hosts
  sortie plan job.toml --set topology.micro_batch_size=8    what would run where
  sortie config init > job.toml                             a commented config to start from
)";

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

  Program program;
  std::vector<Verb> verbs;
  add_run_verbs(app, verbs, program);
  add_copy_verbs(app, verbs, program);
  add_config_verbs(app, verbs, program);

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
    const std::string near = suggestion(app, given);
    fmt::print(stderr, "sortie: {}{}{}\n", error.what(), near.empty() ? "; try --help" : "; ",
               near);
    return kExitUsage;
  }
  const auto verb = std::ranges::find_if(verbs, [](const Verb& v) { return v.app->parsed(); });
  SORTIE_CHECK(verb != verbs.end());
  if (has_program && !verb->takes_program) {
    fmt::print(stderr, "sortie: `{}` takes no program after --\n", verb->app->get_name());
    return kExitUsage;
  }
  if (has_program && program.empty()) {
    fmt::print(stderr, "sortie: nothing follows --; a program is expected there\n");
    return kExitUsage;
  }
  return verb->run();
}

}  // namespace sortie::launcher
