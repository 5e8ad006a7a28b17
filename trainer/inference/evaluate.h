// Scores a model: its loss on a text, and its answers to multiple-choice questions.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "trainer/models/model.h"
#include "trainer/samples/sample_source.h"
#include "trainer/storage/work_progress.h"
#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {

struct TextScore {
  double nats = 0.0;        // summed over the tokens
  std::int64_t tokens = 0;  // predicted tokens
  std::int64_t bytes = 0;   // text bytes of the predicted tokens
  /// Why batches did not run as CUDA graphs on a GPU; nullopt if they did or if it was not tried.
  std::optional<std::string> graph_failure{};
  double loss() const { return nats / static_cast<double>(tokens); }
  double perplexity() const;
  double bits_per_byte() const;
};

/// Scores the samples [0, samples) of a source, `batch` at a time. With `graphs`, batches run as
/// CUDA graphs on a GPU.
Result<TextScore> score_text(ExecutionContext& context, const LanguageModel& model,
                             const Tokenizer& tokenizer, SampleSource& source, std::int64_t samples,
                             std::int64_t batch, const OnProgress& progress = {},
                             bool graphs = true);

struct ChoiceScore {
  std::int64_t items = 0;
  std::int64_t right = 0;           // items whose answer has the highest probability
  std::int64_t right_per_byte = 0;  // ... the highest log-probability per byte of its text
};

/// Scores a file of JSONL, one item per line: {"context": "2 + 2 =", "choices": [" 4", " 5"],
/// "answer": 0}. Context and choice are tokenized as one text, after the tokens `before`. If this
/// is longer than the model's sequence length, its beginning is dropped. ErrorCode::data names the
/// line.
Result<ChoiceScore> score_choices(ExecutionContext& context, const LanguageModel& model,
                                  const Tokenizer& tokenizer,
                                  const std::vector<std::int32_t>& before,
                                  const std::filesystem::path& file,
                                  const OnProgress& progress = {});

}  // namespace sortie::trainer
