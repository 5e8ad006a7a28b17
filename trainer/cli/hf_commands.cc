#include "trainer/cli/hf_commands.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "common/base/command_name.h"
#include "trainer/cli/load_checkpoint.h"
#include "trainer/cli/output_options.h"
#include "trainer/cli/progress.h"
#include "trainer/cli/report.h"
#include "trainer/hf/import.h"
#include "trainer/hf/probe.h"
#include "trainer/loop/rank_context.h"
#include "trainer/loop/trainer.h"

namespace sortie::trainer {
namespace {

void print_report(const Result<ImportReport>& report, int& exit_code, std::string_view command) {
  if (report)
    fmt::print("{}: {} tensors, {} parameters\n", report->checkpoint.string(), report->tensors,
               report->parameters);
  exit_code =
      report_error(command, report ? Result<>() : Result<>(std::unexpected(report.error())));
}

void add_import(CLI::App& app, int& exit_code) {
  struct Arguments {
    std::string folder, out;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("import",
                                         "Make a checkpoint of a Hugging Face model folder "
                                         "(config.json, safetensors) or an llm.c file");
  command
      ->add_option("hf_dir", arguments->folder, "The model's folder, or a file like gpt2_124M.bin")
      ->required();
  command
      ->add_option("out", arguments->out, "Folder of the checkpoint, for trainer.load_weights_from")
      ->required();
  command->callback([arguments, &exit_code] {
    ProgressLine line("import");
    const auto report = import_hf(arguments->folder, arguments->out, line.callback());
    line.finish();
    print_report(report, exit_code, "import");
    if (report && !output_options().quiet)
      fmt::print("`{}` prints the [model] for a config\n",
                 command_line({"checkpoint", "model", arguments->out}));
  });
}

void add_export(CLI::App& app, int& exit_code) {
  struct Arguments {
    std::string checkpoint, out, dtype;
    double shard_gb = 5.0;
    bool with_mtp = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("export", "Make a Hugging Face model folder of a checkpoint");
  command->add_option("checkpoint", arguments->checkpoint, "Checkpoint, or a folder of them")
      ->required();
  command->add_option("hf_dir", arguments->out, "A new folder")->required();
  command
      ->add_option("--dtype", arguments->dtype,
                   "Type of the weights (default: as they were imported, else f32)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  command->add_option("--max-shard-gb", arguments->shard_gb, "Largest file, in GB")
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  command->add_flag("--with-mtp", arguments->with_mtp,
                    "Also the layers of multi-token prediction, which transformers does not load");
  command->callback([arguments, &exit_code] {
    ExportOptions options;
    options.with_mtp = arguments->with_mtp;
    if (arguments->dtype == "f32") options.type = StorageType::f32;
    if (arguments->dtype == "bf16") options.type = StorageType::bf16;
    if (arguments->dtype == "f16") options.type = StorageType::f16;
    options.max_shard_bytes = static_cast<std::uint64_t>(arguments->shard_gb * 1e9);
    ProgressLine line("export");
    options.progress = line.callback();
    const auto report = export_hf(arguments->checkpoint, arguments->out, options);
    line.finish();
    print_report(report, exit_code, "export");
  });
}

Result<> run_probe(const std::string& place, const std::string& dtype, const std::string& device,
                   ProbeOptions options) {
  SORTIE_ASSIGN_OR_RETURN(const RankContext rank, rank_context_from_environment());
  SORTIE_ASSIGN_OR_RETURN(const ComputeDevice compute, choose_device_of_verb(device));
  options.device = compute.device;
  SORTIE_ASSIGN_OR_RETURN(options.dtype, choose_precision(dtype, cpu_facts(), compute.gpu));
  options.threads = rank.threads;
  return probe(place, options);
}

void add_probe(CLI::App& app, int& exit_code) {
  struct Arguments {
    std::string place, dtype = "f32", device = "auto";
    ProbeOptions options;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "probe", "Write a model's logits, loss, gradients and activations for given tokens");
  command
      ->add_option("model", arguments->place,
                   "Checkpoint, folder of checkpoints, Hugging Face model folder, or llm.c file")
      ->required();
  command
      ->add_option("--tokens", arguments->options.tokens,
                   "JSON: {\"input_ids\": [[...]], \"labels\": [[...]]}, -100 = not counted")
      ->required();
  command->add_option("--out", arguments->options.out, "Safetensors file to write")->required();
  command->add_option("--dtype", arguments->dtype, "Of weights and activations")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  add_device_option(*command, arguments->device);
  command->add_flag("--gradients", arguments->options.gradients, "Also grad.NAME of every tensor");
  command->add_option("--activations", arguments->options.activations,
                      "Also activation.MODULE of the modules that match, like 'layers.*.mlp.down'");
  command->callback([arguments, &exit_code] {
    exit_code = report_error("probe", run_probe(arguments->place, arguments->dtype,
                                                arguments->device, arguments->options));
  });
}

}  // namespace

void add_hf_commands(CLI::App& app, int& exit_code) {
  add_import(app, exit_code);
  add_export(app, exit_code);
  add_probe(app, exit_code);
}

}  // namespace sortie::trainer
