#include "trainer/cli/eval_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "common/base/print_stderr.h"
#include "trainer/cli/load_checkpoint.h"
#include "trainer/cli/progress.h"
#include "trainer/inference/evaluate.h"
#include "trainer/loop/rank_context.h"
#include "trainer/samples/chat_source.h"
#include "trainer/samples/dataset_source.h"
#include "trainer/samples/tokenizer_agreement.h"

namespace sortie::trainer {
namespace {

struct EvalOptions {
  std::string checkpoint, tokenizer, choices, precision = "auto", device = "auto";
  std::vector<std::string> data, chats;
  std::int64_t samples = 0, batch = 8;
  bool json = false;
};

Result<std::unique_ptr<SampleSource>> open_samples(const EvalOptions& options,
                                                   const LoadedModel& loaded,
                                                   const Tokenizer& tokenizer, int threads) {
  if (!options.chats.empty()) {
    ProgressLine line("eval");
    SORTIE_ASSIGN_OR_RETURN(auto source,
                            ChatSource::open(loaded.job, options.chats, tokenizer,
                                             /*shuffle=*/false, threads, line.callback()));
    line.finish();
    if (const std::string text = source->missing_ends(tokenizer); !text.empty())
      log::warning("--chat: {}", text);
    return source;
  }
  SORTIE_ASSIGN_OR_RETURN(auto source, DatasetSource::open_validation(loaded.job, options.data));
  SORTIE_ASSIGN_OR_RETURN(std::vector<TokenizerClaim> claims,
                          claims_of_files(options.data, "--data"));
  claims.push_back({options.tokenizer.empty() ? "checkpoint " + loaded.folder.string()
                                              : std::string("--tokenizer"),
                    id_of(tokenizer)});
  SORTIE_TRY(check_tokenizers_agree(claims));
  return source;
}

Result<> score_samples(const EvalOptions& options, LoadedModel& loaded, const Tokenizer& tokenizer,
                       SampleSource& source, nlohmann::ordered_json& report) {
  const std::int64_t all = source.samples_per_epoch();
  const std::int64_t samples = options.samples > 0 ? std::min(options.samples, all) : all;
  ProgressLine line("eval");
  SORTIE_ASSIGN_OR_RETURN(const TextScore score,
                          score_text(loaded.context, *loaded.model, tokenizer, source, samples,
                                     options.batch, line.callback()));
  line.finish();
  if (!std::isfinite(score.loss()))
    return fail(ErrorCode::checkpoint,
                fmt::format("{}: the loss is not a finite number; its weights are not, or its "
                            "products overflow; try --precision f32, or an earlier checkpoint",
                            loaded.folder.string()));
  if (score.graph_failure) print_stderr("sortie-train eval: {}\n", *score.graph_failure);
  report["loss"] = score.loss();
  report["perplexity"] = score.perplexity();
  report["bits_per_byte"] = score.bits_per_byte();
  report["tokens"] = score.tokens;
  report["bytes"] = score.bytes;
  if (!options.json)
    fmt::print(
        "loss {:.6f} nats per token, perplexity {:.4f}, {:.4f} bits per byte ({} tokens, {} "
        "bytes)\n",
        score.loss(), score.perplexity(), score.bits_per_byte(), score.tokens, score.bytes);
  return {};
}

Result<> score_answers(const EvalOptions& options, LoadedModel& loaded, const Tokenizer& tokenizer,
                       nlohmann::ordered_json& report) {
  SORTIE_ASSIGN_OR_RETURN(const auto before, loaded.tokens_before_prompt(tokenizer));
  ProgressLine line("eval");
  SORTIE_ASSIGN_OR_RETURN(const ChoiceScore score,
                          score_choices(loaded.context, *loaded.model, tokenizer, before,
                                        options.choices, line.callback()));
  line.finish();
  const auto share = [&](std::int64_t right) {
    return static_cast<double>(right) / static_cast<double>(score.items);
  };
  report["items"] = score.items;
  report["accuracy"] = share(score.right);
  report["accuracy_per_byte"] = share(score.right_per_byte);
  if (!options.json)
    fmt::print("accuracy {:.4f} ({} of {}), per byte of the answers {:.4f} ({})\n",
               share(score.right), score.right, score.items, share(score.right_per_byte),
               score.right_per_byte);
  return {};
}

Result<> run(const EvalOptions& options) {
  const bool samples = !options.data.empty() || !options.chats.empty();
  if (!samples && options.choices.empty())
    return fail(ErrorCode::usage,
                "nothing to evaluate; give --data PREFIX, --chat FILE or --multiple-choice FILE");
  SORTIE_ASSIGN_OR_RETURN(const RankContext rank, rank_context_from_environment());
  SORTIE_ASSIGN_OR_RETURN(
      const auto loaded,
      load_checkpoint("eval", options.checkpoint, rank.threads, options.precision, options.device));
  SORTIE_ASSIGN_OR_RETURN(const auto tokenizer, loaded->tokenizer(options.tokenizer));
  nlohmann::ordered_json report = {{"checkpoint", loaded->folder.string()}, {"step", loaded->step}};
  if (samples) {
    SORTIE_ASSIGN_OR_RETURN(const auto source,
                            open_samples(options, *loaded, *tokenizer, rank.threads));
    SORTIE_TRY(score_samples(options, *loaded, *tokenizer, *source, report));
  }
  if (!options.choices.empty()) SORTIE_TRY(score_answers(options, *loaded, *tokenizer, report));
  if (options.json) fmt::print("{}\n", report.dump());
  return {};
}

}  // namespace

void add_eval_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "eval",
      "Loss, perplexity and bits per byte on token files or conversations; answers to multiple "
      "choice");
  auto options = std::make_shared<EvalOptions>();
  command
      ->add_option("checkpoint,--checkpoint", options->checkpoint,
                   "Checkpoint, or a folder of them (the newest good one)")
      ->required();
  command->add_option("--tokenizer", options->tokenizer,
                      "byte | sentencepiece:FILE | hf:FILE; default: the one in the checkpoint");
  CLI::Option* data = command->add_option(
      "--data", options->data, "Token files: PREFIX of PREFIX.bin and PREFIX.idx; may be several");
  command
      ->add_option("--chat", options->chats,
                   "JSONL of conversations, as data.chat_files has them: the loss is that of their "
                   "answers; may be several")
      ->excludes(data);
  command
      ->add_option("--samples", options->samples,
                   "Sequences to take from the beginning, 0 = all of them")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--batch", options->batch, "Sequences of a forward pass")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option(
      "--multiple-choice", options->choices,
      "JSONL: {\"context\": \"...\", \"choices\": [\"...\"], \"answer\": 0} a line");
  command->add_option("--precision", options->precision, "Precision of the matrix products")
      ->check(CLI::IsMember({"auto", "bf16", "f32"}))
      ->capture_default_str();
  add_device_option(*command, options->device);
  command->add_flag("--json", options->json, "One JSON object instead of text");
  command->callback([options, &exit_code] {
    if (const Result<> outcome = run(*options); !outcome) {
      print_stderr("sortie-train: {}\n", outcome.error().message);
      exit_code = exit_code_for(outcome.error().code);
    }
  });
}

}  // namespace sortie::trainer
