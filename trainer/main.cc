// sortie-train: the trainer and the tools around its data and checkpoints.
#include <CLI/CLI.hpp>
#include <string_view>

#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "trainer/cli/checkpoint_commands.h"
#include "trainer/cli/data_commands.h"
#include "trainer/cli/eval_command.h"
#include "trainer/cli/generate_command.h"
#include "trainer/cli/hf_commands.h"
#include "trainer/cli/merge_command.h"
#include "trainer/cli/passive_threads.h"
#include "trainer/cli/train_command.h"

namespace {

/// Whether the verb runs a model, with compute threads.
bool computes(std::string_view verb) {
  return verb == "train" || verb == "eval" || verb == "generate";
}

}  // namespace

int main(int argc, char** argv) {
  sortie::log::init("sortie-train", sortie::log::Level::info);
  if (argc > 1 && computes(argv[1])) sortie::trainer::make_threads_wait_passively(argv);
  CLI::App app("Transformer training on the ranks that sortie starts", "sortie-train");
  app.set_version_flag("--version", "sortie-train " SORTIE_VERSION);
  app.require_subcommand(1);
  int exit_code = sortie::kExitOk;
  sortie::trainer::add_train_command(app, exit_code);
  sortie::trainer::add_generate_command(app, exit_code);
  sortie::trainer::add_eval_command(app, exit_code);
  sortie::trainer::add_merge_command(app, exit_code);
  sortie::trainer::add_hf_commands(app, exit_code);
  sortie::trainer::add_data_commands(app, exit_code);
  sortie::trainer::add_checkpoint_commands(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? sortie::kExitOk : sortie::kExitUsage;
  }
  return exit_code;
}
