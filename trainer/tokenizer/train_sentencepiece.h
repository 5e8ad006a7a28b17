// Training of a sentencepiece BPE model from text files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "common/base/result.h"
#include "trainer/storage/work_progress.h"
#include "trainer/tokenizer/text_check.h"

namespace sortie::trainer {

struct SentencepieceTraining {
  std::vector<std::filesystem::path> files{};
  std::int64_t vocab_size = 32000;
  std::filesystem::path output{};  // the .model file
  /// Files are used in order until this many bytes are read: BPE needs a sample, not the corpus.
  std::uint64_t max_bytes = std::uint64_t{256} << 20;
  bool keep_non_text = false;  // also use files that are not text (text_check.h)
  OnProgress progress{};
};

/// The model is lossless for valid UTF-8: no normalisation, spaces and newlines kept, rare
/// characters as bytes. Id 0 is unknown, id 1 ends a document. Equal files give the same model. The
/// output file appears complete or not at all. Returns the files that were left out because they
/// are not text.
Result<LeftOutText> train_sentencepiece(const SentencepieceTraining& training);

}  // namespace sortie::trainer
