// sortie-train: the trainer and the tools around its data and checkpoints.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <span>
#include <string_view>

#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "common/base/standard_files.h"
#include "common/cli/command_line.h"
#include "common/cli/common_verbs.h"
#include "common/cli/print.h"
#include "common/cli/tree.h"
#include "trainer/cli/bench_commands.h"
#include "trainer/cli/checkpoint_commands.h"
#include "trainer/cli/data_commands.h"
#include "trainer/cli/devices_command.h"
#include "trainer/cli/eval_command.h"
#include "trainer/cli/examples.h"
#include "trainer/cli/generate_command.h"
#include "trainer/cli/hf_commands.h"
#include "trainer/cli/merge_command.h"
#include "trainer/cli/output_options.h"
#include "trainer/cli/passive_threads.h"
#include "trainer/cli/plan_command.h"
#include "trainer/cli/train_command.h"
#include "trainer/cli/verb_guard.h"

namespace {

/// Collects all verbs of the tree. They run while the command line is parsed and set their exit
/// code.
void collect_verbs(CLI::App& app, const int& exit_code, sortie::cli::Verbs& verbs) {
  const auto below = app.get_subcommands([](CLI::App*) { return true; });
  for (CLI::App* sub : below) collect_verbs(*sub, exit_code, verbs);
  if (below.empty()) verbs.push_back({&app, [&exit_code] { return exit_code; }});
}

constexpr const char* kEnvironment = R"(.SH ENVIRONMENT
.TP
\fBOMP_NUM_THREADS\fR
Number of compute threads, if the config does not set it.
.TP
\fBSORTIE_CONFIG\fR, \fBSORTIE_SOCKET\fR, \fBRANK\fR, \fBWORLD_SIZE\fR
Set by \fBsortie\fR(1) for each rank.
)";

/// Whether the verb runs a model, with compute threads. Only -q and -v may precede a verb.
bool computes(std::span<char* const> arguments) {
  const auto verb =
      std::ranges::find_if(arguments, [](std::string_view word) { return !word.starts_with('-'); });
  if (verb == arguments.end()) return false;
  const std::string_view name = *verb;
  return name == "train" || name == "eval" || name == "generate" || name == "bench";
}

/// Applies the flags that all verbs have, before the verb runs.
void set_output_options(const CLI::App& root) {
  const CLI::App* verb = &root;
  while (!verb->get_subcommands().empty()) verb = verb->get_subcommands().front();
  const sortie::cli::GlobalFlags flags = sortie::cli::global_flags(*verb);
  sortie::trainer::output_options() = {flags.quiet, flags.verbose};
  sortie::trainer::init_log("info");
}

}  // namespace

int main(int argc, char** argv) {
  using namespace sortie;
  open_closed_standard_files();
  log::init("sortie-train", log::Level::info);
  if (computes(std::span(argv, static_cast<std::size_t>(argc)).subspan(1)))
    trainer::make_threads_wait_passively(argv);
  CLI::App app("Transformer training on the ranks that sortie starts, and the tools around it",
               "sortie-train");
  app.set_version_flag("--version", "sortie-train " SORTIE_VERSION);
  app.require_subcommand(1);
  int exit_code = kExitOk;
  trainer::add_train_command(app, exit_code);
  trainer::add_plan_command(app, exit_code);
  trainer::add_devices_command(app, exit_code);
  trainer::add_generate_command(app, exit_code);
  trainer::add_eval_command(app, exit_code);
  trainer::add_merge_command(app, exit_code);
  trainer::add_hf_commands(app, exit_code);
  trainer::add_data_commands(app, exit_code);
  trainer::add_checkpoint_commands(app, exit_code);
  trainer::add_bench_commands(app, exit_code);
  trainer::set_examples(app);
  cli::Verbs verbs;
  collect_verbs(app, exit_code, verbs);
  cli::Program program;
  cli::add_help_verb(app, verbs);
  cli::add_man_verb(app, verbs, kEnvironment);
  cli::add_completion_verbs(app, verbs, program, {});
  cli::add_global_flags(app, "Also print details: threads, devices, files", /*colors=*/false);
  cli::set_help(app, verbs);
  app.parse_complete_callback([&app] {
    set_output_options(app);
    cli::refuse_unusable_values(app);
  });
  trainer::VerbGuard guard;
  return guard.run([&] {
    const auto choice = cli::choose_verb(app, verbs, program, {argv + 1, argv + argc});
    if (!choice) return cli::print_error(choice.error());
    return cli::end_output("sortie-train",
                           choice->verb == nullptr ? choice->exit_code : choice->verb->run());
  });
}
