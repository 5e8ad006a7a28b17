// Training of a byte-level BPE tokenizer from text files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/storage/work_progress.h"
#include "trainer/tokenizer/pretokenizer.h"
#include "trainer/tokenizer/text_check.h"

namespace sortie::trainer {

struct BpeTraining {
  std::vector<std::filesystem::path> files{};
  WordPattern pattern = WordPattern::llama3;  // those of Qwen also get its NFC
  std::int64_t vocab_size = 32000;
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  // the first ids
  std::int64_t min_count = 2;                                   // a pair seen less is not merged
  std::filesystem::path output{};                               // the tokenizer.json
  /// Files are used in order until this many bytes are read.
  std::uint64_t max_bytes = std::uint64_t{256} << 20;
  bool keep_non_text = false;  // files that are no text (text_check.h) count too
  int threads = 1;             // for the counting of words; the result does not depend on it
  OnProgress progress{};
};

struct BpeTrainingResult {
  std::int64_t vocab_size = 0;  // may be less than asked for, when no pair is left
  std::uint64_t text_bytes = 0;
  std::uint64_t words = 0;  // different ones
  LeftOutText left_out{};   // files that are no text
};

/// The rules are those that the `tokenizers` package learns from the same words, ties included:
/// among pairs of one count the one of the lowest ids. The same files give the same bytes. The file
/// appears complete or not at all.
Result<BpeTrainingResult> train_bpe(const BpeTraining& training);

}  // namespace sortie::trainer
