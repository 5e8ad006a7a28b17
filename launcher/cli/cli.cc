#include "launcher/cli/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "common/base/log.h"
#include "common/cli/command_line.h"
#include "common/cli/common_verbs.h"
#include "common/cli/tree.h"
#include "launcher/chaos/fault.h"
#include "launcher/cli/verb.h"
#include "launcher/console/output_options.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace {

constexpr const char* kExamples = R"(Examples:
  sortie run configs/quickstart.toml                        train on this machine
  sortie run --hosts 'gpu[01-04]' --slots 8 -- ./my_mpi     start an MPI program on four hosts
  sortie run --detach job.toml; sortie attach last          in the background
  sortie plan job.toml --set topology.micro_batch_size=8    ranks, devices, memory and commands
  sortie exec --hosts 'gpu[01-64]' --fold -- uname -r       one command on many hosts
  sortie check job.toml                                     checks the hosts of the job
  sortie nodes ls                                           cordoned hosts
  sortie config init > job.toml                             a commented config to start from
  sortie help run                                           the options of a verb
)";

constexpr const char* kEnvironment = R"(.SH ENVIRONMENT
.TP
\fBNO_COLOR\fR
Not empty: no colours.
.TP
\fBCLICOLOR_FORCE\fR
Not empty and not 0: colours even if the output is not a terminal.
.TP
\fBSORTIE_USER_CONFIG\fR
File with the user's defaults; if not set, \fIsortie/config.toml\fR in \fBXDG_CONFIG_HOME\fR or \fI\(ti/.config\fR. \fBnone\fR: no file is read.
.TP
\fBXDG_STATE_HOME\fR
Runs are stored in \fIsortie/runs\fR in this folder; if not set, in \fI\(ti/.local/state\fR.
)";

/// IDs of the runs in the default state folder, newest last.
std::vector<std::string> known_runs() {
  std::vector<std::string> out;
  const auto state = state_folder("");
  if (!state) return out;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(*state / "runs", error))
    if (const std::string name = entry.path().filename().string(); !name.starts_with("."))
      out.push_back(name);
  std::ranges::sort(out);
  return out;
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
  add_shell_verb(app, verbs);
  add_ssh_verb(app, verbs, program);
  add_check_verbs(app, verbs, program);
  add_copy_verbs(app, verbs, program);
  add_image_verbs(app, verbs, program);
  add_nodes_verbs(app, verbs);
  add_connections_verbs(app, verbs);
  add_sites_verb(app, verbs);
  add_chaos_verb(app, verbs);
  add_config_verbs(app, verbs, program);
  add_report_verb(app, verbs);
  add_explain_verb(app, verbs);
  cli::add_help_verb(app, verbs);
  cli::add_man_verb(app, verbs, kEnvironment);
  cli::add_completion_verbs(app, verbs, program, {known_runs, fault_names()});
  cli::add_global_flags(app, "Also print details of SSH connections; in check also what passed",
                        /*colors=*/true);
  cli::set_help(app, verbs);

  std::vector<std::string> words(argv + 1, argv + argc);
  mark_ssh_command(app, words);
  const auto choice = cli::choose_verb(app, verbs, program, std::move(words));
  if (!choice) return print_error(choice.error());
  if (choice->verb == nullptr) return choice->exit_code;
  const cli::GlobalFlags flags = cli::global_flags(*choice->verb->app);
  output_options() = {flags.quiet, flags.verbose, flags.no_color};
  if (flags.verbose) log::init("sortie", log::Level::debug);
  return choice->verb->run();
}

}  // namespace sortie::launcher
