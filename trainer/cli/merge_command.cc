#include "trainer/cli/merge_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "common/base/exit_code.h"
#include "common/base/print_stderr.h"
#include "trainer/cli/load_checkpoint.h"
#include "trainer/loop/rank_context.h"
#include "trainer/state/merge.h"

namespace sortie::trainer {
namespace {

Result<> run(const std::string& checkpoint, const std::string& out) {
  SORTIE_ASSIGN_OR_RETURN(const RankContext rank, rank_context_from_environment());
  SORTIE_ASSIGN_OR_RETURN(const auto loaded, load_checkpoint("merge-lora", checkpoint, rank.threads,
                                                             "f32", "cpu", CheckDepth::files));
  SORTIE_ASSIGN_OR_RETURN(const std::filesystem::path path, write_merged(*loaded, out));
  fmt::print("{}\n", path.string());
  return {};
}

}  // namespace

void add_merge_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("merge-lora", "Merge low-rank updates into the weights");
  auto paths = std::make_shared<std::pair<std::string, std::string>>();
  command
      ->add_option("checkpoint", paths->first,
                   "Checkpoint, or a folder of them (the newest good one)")
      ->required();
  command->add_option("out", paths->second, "Folder for the new checkpoint")->required();
  command->callback([paths, &exit_code] {
    if (const Result<> outcome = run(paths->first, paths->second); !outcome) {
      print_stderr("sortie-train: {}\n", outcome.error().message);
      exit_code = exit_code_for(outcome.error().code);
    }
  });
}

}  // namespace sortie::trainer
