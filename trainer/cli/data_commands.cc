#include "trainer/cli/data_commands.h"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/log.h"
#include "common/base/shell_text.h"
#include "trainer/cli/data_report.h"
#include "trainer/cli/progress.h"
#include "trainer/cli/report.h"
#include "trainer/data/build.h"
#include "trainer/data/inspect.h"
#include "trainer/tokenizer/stored_tokenizer.h"
#include "trainer/tokenizer/train_bpe.h"
#include "trainer/tokenizer/train_sentencepiece.h"

namespace sortie::trainer {
namespace {

volatile std::sig_atomic_t interrupt_requested = 0;

void request_interrupt(int) {
  interrupt_requested = 1;
}

struct BuildArguments {
  std::string tokenizer = "byte";
  std::string split;
  BuildOptions options;
};

Result<> run_build(BuildArguments& arguments) {
  BuildOptions& options = arguments.options;
  SORTIE_ASSIGN_OR_RETURN(const auto tokenizer, make_tokenizer(arguments.tokenizer));
  if (!arguments.split.empty()) {
    SORTIE_ASSIGN_OR_RETURN(options.split, parse_split(arguments.split));
  }
  log::debug("tokenizer {}, {} ids, {} threads", tokenizer->name(), tokenizer->vocab_size(),
             options.threads);
  // Signals only request an interruption, so that the build removes the files being written.
  std::signal(SIGINT, request_interrupt);
  std::signal(SIGTERM, request_interrupt);
  options.interrupted = [] { return interrupt_requested != 0; };
  const auto begin = std::chrono::steady_clock::now();
  ProgressLine line("data build");
  options.progress = [&](const BuildProgress& progress) {
    line.update({"tokenizing", progress.input_bytes, progress.total_bytes});
  };
  const auto result = build_token_files(options, *tokenizer);
  line.finish();
  if (!result) return std::unexpected(result.error());
  print_build(*result, options,
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  return {};
}

struct InspectArguments {
  std::string prefix;
  std::string tokenizer;  // empty = that of the manifest
  std::size_t num_tokens = 64;
  bool json = false;
};

Result<> run_inspect(const InspectArguments& arguments) {
  SORTIE_ASSIGN_OR_RETURN(const Inspection inspection,
                          inspect_token_file(arguments.prefix, arguments.num_tokens));
  std::string name = arguments.tokenizer;
  if (name.empty() && inspection.manifest) name = inspection.manifest->tokenizer;
  std::unique_ptr<Tokenizer> tokenizer;
  if (!name.empty()) {
    SORTIE_ASSIGN_OR_RETURN(tokenizer, make_tokenizer(name));
  }
  if (tokenizer && inspection.manifest) {
    const BuildManifest& built = *inspection.manifest;
    const TokenizerId wanted = {built.tokenizer, built.tokenizer_sha256, built.vocabulary_sha256};
    if (const TokenizerId found = id_of(*tokenizer); !same_vocabulary(wanted, found))
      return fail(
          ErrorCode::data,
          fmt::format("{}: was built with {}, and {} has another vocabulary; name the right "
                      "file as --tokenizer",
                      arguments.prefix, describe(wanted), describe(found)));
  }
  print_inspection(arguments.prefix, inspection, tokenizer.get(), arguments.json);
  return {};
}

struct TrainTokenizerArguments {
  std::string type = "sentencepiece";
  std::string pattern = "llama3";
  CorpusOptions corpus;
  std::int64_t vocab_size = 32000;
  std::filesystem::path output;
  bool overwrite = false;
  std::uint64_t max_bytes = std::uint64_t{256} << 20;
  BpeTraining bpe;
  std::vector<const CLI::Option*> only_bpe{};
};

Result<> check_type(const TrainTokenizerArguments& arguments) {
  if (arguments.type == "bpe") return {};
  for (const CLI::Option* option : arguments.only_bpe)
    if (option->count() > 0)
      return fail(ErrorCode::usage,
                  fmt::format("{}: a {} model does not have it; give --type bpe, or leave it out",
                              option->get_name(), arguments.type));
  return {};
}

/// Makes the folder of the file, and checks that the file can be written there: a training may take
/// an hour, and its file is written last.
Result<> prepare_output(const std::filesystem::path& file, bool overwrite) {
  std::error_code error;
  if (!file.has_filename() || std::filesystem::is_directory(file, error))
    return fail(ErrorCode::usage, fmt::format("--output {}: a folder; name a file in it, as in {}",
                                              file.string(), (file / "tokenizer.json").string()));
  if (!overwrite && std::filesystem::exists(file, error))
    return fail(
        ErrorCode::usage,
        fmt::format("{}: exists; choose another --output or give --overwrite", file.string()));
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  std::filesystem::create_directories(folder, error);
  if (error) return std::unexpected(os_error(error.value(), "create " + folder.string()));
  if (::access(folder.c_str(), W_OK) != 0)
    return std::unexpected(os_error(errno, "write in " + folder.string()));
  return {};
}

/// Tokenizers are trained on text as it is: what is packed or marked up would spoil them.
Result<> check_plain_text(const Corpus& corpus) {
  for (const std::filesystem::path& file : corpus.files) {
    const std::string name = file.string();
    if (name.ends_with(".gz"))
      return fail(ErrorCode::usage,
                  fmt::format("{}: compressed; unpack it first, as with `gzip -dk`", name));
    if (name.ends_with(".jsonl"))
      return fail(ErrorCode::usage,
                  fmt::format("{}: JSON lines; write their texts to a file first, as with `jq -r "
                              ".text`, or give it another name to take it as text",
                              name));
  }
  return {};
}

Result<> run_train_tokenizer(TrainTokenizerArguments& arguments) {
  SORTIE_TRY(check_type(arguments));
  SORTIE_ASSIGN_OR_RETURN(Corpus corpus, list_corpus(arguments.corpus));
  SORTIE_TRY(check_plain_text(corpus));
  SORTIE_TRY(prepare_output(arguments.output, arguments.overwrite));
  const std::string output = arguments.output.string();
  log::debug("{} files, at most {} of text", corpus.files.size(), human_bytes(arguments.max_bytes));
  ProgressLine line("data train-tokenizer");
  const auto print_left_out = [](const LeftOutText& left_out) {
    if (left_out.count() > 0) fmt::print("left out: {}\n", left_out.summary("file"));
  };
  if (arguments.type == "sentencepiece") {
    const auto left_out = train_sentencepiece({.files = std::move(corpus.files),
                                               .vocab_size = arguments.vocab_size,
                                               .output = arguments.output,
                                               .max_bytes = arguments.max_bytes,
                                               .keep_non_text = arguments.bpe.keep_non_text,
                                               .progress = line.callback()});
    line.finish();
    if (!left_out) return std::unexpected(left_out.error());
    print_left_out(*left_out);
    fmt::print("{}: {} ids; use it as --tokenizer {}\n", output, arguments.vocab_size,
               shell_word("sentencepiece:" + output));
    return {};
  }
  BpeTraining& training = arguments.bpe;
  training.files = std::move(corpus.files);
  training.pattern = word_pattern_by_name(arguments.pattern).value_or(WordPattern::llama3);
  training.vocab_size = arguments.vocab_size;
  training.output = arguments.output;
  training.max_bytes = arguments.max_bytes;
  training.progress = line.callback();
  const auto trained = train_bpe(training);
  line.finish();
  if (!trained) return std::unexpected(trained.error());
  const BpeTrainingResult& result = *trained;
  print_left_out(result.left_out);
  fmt::print("{}: {} ids from {} of text, {} different words; use it as --tokenizer {}\n", output,
             result.vocab_size, human_bytes(result.text_bytes), result.words,
             shell_word("hf:" + output));
  return {};
}

int all_cores() {
  return static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));
}

void add_build(CLI::App& data, int& exit_code) {
  auto arguments = std::make_shared<BuildArguments>();
  CLI::App* command = data.add_subcommand("build", "Turn text files into token files");
  BuildOptions& options = arguments->options;
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "byte | sentencepiece:FILE | hf:FILE (a tokenizer.json)")
      ->capture_default_str();
  command->add_option("-o,--output", options.output, "PREFIX of the .bin, .idx and .json files")
      ->required();
  command->add_option("--split", arguments->split,
                      "Shares of documents for PREFIX-train and PREFIX-validation, as in 99,1");
  command->add_flag("--append-eod", options.append_eod,
                    "End every document with the tokenizer's end-of-document id");
  command->add_flag("--add-special-tokens", options.add_special_tokens,
                    "Add the special tokens of the tokenizer.json to every document, such as a "
                    "start token");
  command
      ->add_option("--include", options.corpus.include,
                   "File name pattern for folders, as in '*.txt' (repeatable)")
      ->allow_extra_args(false);
  command->add_option("--json-key", options.documents.json_key,
                      "Inputs are JSON lines; the key whose string is a document");
  options.threads = all_cores();
  command->add_option("--threads", options.threads, "Threads that tokenize; default: all cores")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--document-bytes", options.documents.document_bytes,
                   "Cut files at the first newline after this many bytes (4096, 64KB, 1MB)")
      ->transform(CLI::AsSizeValue(false));
  command->add_flag("--keep-non-text", options.documents.keep_non_text,
                    "Also take documents with NUL bytes, or with more than 1 % invalid UTF-8");
  command->add_flag("--overwrite", options.overwrite, "Replace files that exist");
  command
      ->add_option("inputs", options.corpus.inputs,
                   "Text files, folders of them, or patterns; gzip or not")
      ->required();
  command->callback(
      [arguments, &exit_code] { exit_code = report_error("data build", run_build(*arguments)); });
}

void add_inspect(CLI::App& data, int& exit_code) {
  auto arguments = std::make_shared<InspectArguments>();
  CLI::App* command = data.add_subcommand("inspect", "Check a token file and show its contents");
  command->add_option("prefix", arguments->prefix, "PREFIX of PREFIX.bin and PREFIX.idx")
      ->required();
  command->add_option("--tokenizer", arguments->tokenizer,
                      "Tokenizer to decode with; default: that of the manifest");
  command->add_option("--tokens", arguments->num_tokens, "How many first tokens to show")
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "One JSON object instead of text");
  command->callback([arguments, &exit_code] {
    exit_code = report_error("data inspect", run_inspect(*arguments));
  });
}

void add_train_tokenizer(CLI::App& data, int& exit_code) {
  auto arguments = std::make_shared<TrainTokenizerArguments>();
  CLI::App* command = data.add_subcommand("train-tokenizer", "Train a BPE tokenizer on text files");
  command
      ->add_option("--type", arguments->type,
                   "sentencepiece: a .model file; bpe: a Hugging Face tokenizer.json")
      ->capture_default_str()
      ->check(CLI::IsMember({"sentencepiece", "bpe"}));
  CLI::Option* pattern =
      command->add_option("--pattern", arguments->pattern, "Pre-tokenization pattern of bpe")
          ->capture_default_str()
          ->check(CLI::IsMember(
              {"gpt2", "llama3", "qwen2", "qwen35", "o200k", "tekken", "deepseek-v3"}));
  CLI::Option* special_tokens =
      command
          ->add_option(
              "--special-token", arguments->bpe.special_tokens,
              "Special token of bpe; replaces the default (repeatable). They have the first ids")
          ->capture_default_str()
          ->allow_extra_args(false);
  CLI::Option* min_count = command
                               ->add_option("--min-count", arguments->bpe.min_count,
                                            "bpe merges no pair that occurs less often")
                               ->capture_default_str()
                               ->check(CLI::Range(1, 1'000'000'000));
  arguments->only_bpe = {pattern, special_tokens, min_count};
  arguments->bpe.threads = all_cores();
  command->add_option("--vocab-size", arguments->vocab_size, "Number of ids")
      ->capture_default_str()
      ->check(CLI::Range(260, 1'000'000));
  command->add_option("-o,--output", arguments->output, "The file to write")->required();
  command->add_flag("--overwrite", arguments->overwrite, "Replace the file if it exists");
  command
      ->add_option("--max-bytes", arguments->max_bytes, "Read at most this much text (64MB, 1GB)")
      ->transform(CLI::AsSizeValue(false));
  command
      ->add_option("--include", arguments->corpus.include,
                   "File name pattern for folders (repeatable)")
      ->allow_extra_args(false);
  command->add_flag("--keep-non-text", arguments->bpe.keep_non_text,
                    "Also take files with NUL bytes, or with more than 1 % invalid UTF-8");
  command->add_option("files", arguments->corpus.inputs, "Text files, or folders of them")
      ->required();
  command->callback([arguments, &exit_code] {
    exit_code = report_error("data train-tokenizer", run_train_tokenizer(*arguments));
  });
}

}  // namespace

void add_data_commands(CLI::App& app, int& exit_code) {
  CLI::App* data = app.add_subcommand("data", "Token files: build, inspect, train a tokenizer");
  data->require_subcommand(1);
  add_build(*data, exit_code);
  add_inspect(*data, exit_code);
  add_train_tokenizer(*data, exit_code);
}

}  // namespace sortie::trainer
