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
  WordPattern pattern = WordPattern::llama3;  // the Qwen patterns also set NFC
  std::int64_t vocab_size = 32000;
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  // they get the first ids
  std::int64_t min_count = 2;                                   // rarer pairs are not merged
  std::filesystem::path output{};                               // the tokenizer.json
  /// Files are used in order until this many bytes are read.
  std::uint64_t max_bytes = std::uint64_t{256} << 20;
  bool keep_non_text = false;  // also use files that are not text (text_check.h)
  int threads = 1;             // word-counting threads; the result does not depend on them
  OnProgress progress{};
};

struct BpeTrainingResult {
  std::int64_t vocab_size = 0;  // less than requested if no pair is left
  std::uint64_t text_bytes = 0;
  std::uint64_t words = 0;  // distinct words
  LeftOutText left_out{};   // files that are not text
};

/// Learns the merge rules that the `tokenizers` package learns from the same words, including ties:
/// among pairs of equal count, the one with the lowest ids. Equal files give identical bytes. The
/// output file appears complete or not at all.
Result<BpeTrainingResult> train_bpe(const BpeTraining& training);

}  // namespace sortie::trainer
