#include "trainer/cli/generate_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "common/base/exit_code.h"
#include "common/config/load.h"
#include "trainer/checkpoint/find.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/generate.h"
#include "trainer/rank_context.h"
#include "trainer/tokenizer/text_stream.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/trainer.h"

namespace sortie::trainer {
namespace {

struct Options {
  std::string checkpoint, prompt = "\n";
  SamplingOptions sampling;
};

/// A checkpoint folder, or the newest in a folder of them.
Result<std::filesystem::path> resolve_checkpoint(const std::filesystem::path& place) {
  std::error_code ignored;
  if (std::filesystem::exists(place / kCommitFile, ignored)) return place;
  SORTIE_ASSIGN_OR_RETURN(const LatestCheckpoint latest, find_latest(place));
  if (!latest.entry)
    return fail(ErrorCode::checkpoint,
                fmt::format("{}: no committed checkpoint there", place.string()));
  return latest.entry->folder;
}

Result<> run(const Options& options) {
  SORTIE_ASSIGN_OR_RETURN(const RankContext rank, rank_context_from_environment());
  SORTIE_ASSIGN_OR_RETURN(const std::filesystem::path folder,
                          resolve_checkpoint(options.checkpoint));
  SORTIE_ASSIGN_OR_RETURN(CheckpointReader reader,
                          CheckpointReader::open(folder, CheckDepth::sizes));
  // The model is the one that was trained: its config is part of the checkpoint.
  SORTIE_ASSIGN_OR_RETURN(
      const config::LoadedJob loaded,
      config::load_job_text(reader.manifest().config, (folder / kManifestFile).string()));
  SORTIE_ASSIGN_OR_RETURN(const auto tokenizer, make_tokenizer(loaded.job.data.tokenizer));
  SORTIE_ASSIGN_OR_RETURN(const DType precision, choose_precision("auto", cpu_facts()));

  ExecutionContext context(rank.threads);
  ParameterStore store;
  const LanguageModel model(context, loaded.job.model, store, /*recompute_layers=*/false);
  store.finalize(context, precision, 16, /*with_optimizer=*/false);
  for (const auto& parameter : store.parameters()) {
    Dims shape;
    for (int i = 0; i < parameter->spec().shape.dims(); ++i)
      shape.push_back(parameter->spec().shape[i]);
    const auto values = store.master().subspan(static_cast<std::size_t>(parameter->offset()),
                                               static_cast<std::size_t>(parameter->elements()));
    SORTIE_TRY(reader.read("model." + parameter->name(), StorageType::f32, shape,
                           Piece::whole(shape), std::as_writable_bytes(values)));
  }
  store.refresh_compute_copy(context);

  std::vector<std::int32_t> prompt;
  SORTIE_TRY(tokenizer->encode(options.prompt, prompt));
  for (const std::int32_t token : prompt)
    if (token >= model.shape().vocab_size)
      return fail(ErrorCode::data,
                  fmt::format("--prompt: token {} is outside of the model's vocabulary of {}",
                              token, model.shape().vocab_size));
  if (prompt.empty())
    return fail(ErrorCode::usage,
                "--prompt: the text is empty; the model needs a token to start from");
  SamplingOptions sampling = options.sampling;
  sampling.stop_token = tokenizer->eod_id().value_or(-1);
  std::fwrite(options.prompt.data(), 1, options.prompt.size(), stdout);
  TextStream stream(*tokenizer);  // a token may end inside of a character
  const auto show = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  generate(context, model, prompt, sampling, [&](std::int32_t token) { show(stream.feed(token)); });
  show(stream.finish());
  std::puts("");
  return {};
}

}  // namespace

void add_generate_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("generate", "Continue a text with the model of a checkpoint");
  auto options = std::make_shared<Options>();
  command
      ->add_option("--checkpoint", options->checkpoint,
                   "Checkpoint, or a folder of them (the newest)")
      ->required();
  command->add_option("--prompt", options->prompt, "Text to continue")->capture_default_str();
  command->add_option("--max-tokens", options->sampling.max_tokens, "Tokens to add")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--temperature", options->sampling.temperature, "0 = always the likeliest")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command->add_option("--top-k", options->sampling.top_k, "Choose among that many, 0 = all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--seed", options->sampling.seed, "Seed of the choices")
      ->capture_default_str();
  command->callback([options, &exit_code] {
    if (const Result<> outcome = run(*options); !outcome) {
      fmt::print(stderr, "sortie-train: {}\n", outcome.error().message);
      exit_code = exit_code_for(outcome.error().code);
    }
  });
}

}  // namespace sortie::trainer
