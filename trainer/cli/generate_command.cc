#include "trainer/cli/generate_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "common/base/exit_code.h"
#include "common/base/print_stderr.h"
#include "common/cli/command_line.h"
#include "trainer/cli/load_checkpoint.h"
#include "trainer/inference/generate.h"
#include "trainer/loop/rank_context.h"
#include "trainer/tokenizer/text_stream.h"

namespace sortie::trainer {
namespace {

struct GenerateOptions {
  std::string checkpoint, tokenizer, prompt = "\n", precision = "f32", device = "auto";
  std::vector<std::string> stop;
  SamplingOptions sampling;
  bool no_cache = false;
};

/// Prints a growing text up to the first stop text, which is not printed.
class Stream {
 public:
  explicit Stream(const std::vector<std::string>& stop) : stop_(stop) {
    for (const std::string& text : stop_) longest_ = std::max(longest_, text.size());
  }
  /// Prints the new part of `text`. Returns false if it contains a stop text.
  bool show(const std::string& text) {
    std::size_t end = text.size();
    bool stopped = false;
    for (const std::string& stop : stop_)
      if (const std::size_t found = text.find(stop); found < end) {
        end = found;
        stopped = true;
      }
    // What may become a stop text is not printed yet.
    if (!stopped && longest_ > 0) end -= std::min(end, longest_ - 1);
    write(text, end);
    return !stopped;
  }
  void finish(const std::string& text) { write(text, text.size()); }

 private:
  void write(const std::string& text, std::size_t end) {
    if (end <= shown_) return;
    std::fwrite(text.data() + shown_, 1, end - shown_, stdout);
    std::fflush(stdout);
    shown_ = end;
  }
  const std::vector<std::string>& stop_;
  std::size_t longest_ = 0, shown_ = 0;
};

Result<> run(const GenerateOptions& options) {
  SORTIE_ASSIGN_OR_RETURN(const RankContext rank, rank_context_from_environment());
  SORTIE_ASSIGN_OR_RETURN(const auto loaded,
                          load_checkpoint("generate", options.checkpoint, rank.threads,
                                          options.precision, options.device));
  SORTIE_ASSIGN_OR_RETURN(const auto tokenizer, loaded->tokenizer(options.tokenizer));
  const LanguageModel& model = *loaded->model;

  std::vector<std::int32_t> prompt;
  SORTIE_TRY(loaded->encode_prompt(*tokenizer, options.prompt, prompt));
  for (const std::int32_t token : prompt)
    if (token >= model.shape().vocab_size)
      return fail(ErrorCode::data,
                  fmt::format("--prompt: token {} is outside of the model's vocabulary of {}",
                              token, model.shape().vocab_size));
  if (prompt.empty())
    return fail(ErrorCode::usage,
                "--prompt: the text is empty, and the tokenizer puts no special token before a "
                "text that the model could start from; give a text");
  SamplingOptions sampling = options.sampling;
  SORTIE_ASSIGN_OR_RETURN(sampling.stop_tokens, loaded->stop_tokens(*tokenizer));
  sampling.cache = !options.no_cache;
  std::fwrite(options.prompt.data(), 1, options.prompt.size(), stdout);
  // Stop texts are searched in the whole text, because they may span tokens.
  TextStream pieces(*tokenizer);  // a token may end inside a character
  Stream stream(options.stop);
  std::string text;
  bool stopped = false;
  generate(
      loaded->context, model, prompt, sampling,
      [&](std::int32_t token) {
        text += pieces.feed(token);
        stopped = !stream.show(text);
        return !stopped;
      },
      [](const std::string& note) { print_stderr("sortie-train generate: {}\n", note); });
  if (!stopped) stream.finish(text + pieces.finish());
  std::puts("");
  return {};
}

}  // namespace

void add_generate_command(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("generate", "Continue a text with the model of a checkpoint");
  auto options = std::make_shared<GenerateOptions>();
  command
      ->add_option("checkpoint,--checkpoint", options->checkpoint,
                   "Checkpoint, or a folder of them (the newest good one)")
      ->required();
  command->add_option("--tokenizer", options->tokenizer,
                      "byte | sentencepiece:FILE | hf:FILE; default: the one in the checkpoint");
  command->add_option("--prompt", options->prompt, "Text to continue; default: a newline")
      ->type_name(cli::kTextOrNone);
  command->add_option("--max-tokens", options->sampling.max_tokens, "Tokens to add")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--temperature", options->sampling.temperature,
                   "0 = always the most likely token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command
      ->add_option("--top-k", options->sampling.top_k,
                   "Choose among this many most likely tokens, 0 = all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option("--top-p", options->sampling.top_p,
                   "Choose among the most likely tokens with this total probability, 1 = all")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--stop", options->stop, "End before this text; may be given several times")
      ->check([](const std::string& text) { return text.empty() ? "the text is empty" : ""; });
  command->add_option("--seed", options->sampling.seed, "Seed of the choices")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      ->add_option(
          "--precision", options->precision,
          "Precision of the matrix products; with bf16, tokens of almost equal probability may be "
          "chosen differently with the cache than without")
      ->check(CLI::IsMember({"auto", "bf16", "f32"}))
      ->capture_default_str();
  add_device_option(*command, options->device);
  command->add_flag("--no-cache", options->no_cache,
                    "Compute the whole text again for every token (slow, for comparisons)");
  command->callback([options, &exit_code] {
    if (const Result<> outcome = run(*options); !outcome) {
      print_stderr("sortie-train: {}\n", outcome.error().message);
      exit_code = exit_code_for(outcome.error().code);
    }
  });
}

}  // namespace sortie::trainer
