// How well a model predicts: a text, and which of some answers.
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
  std::int64_t tokens = 0;  // that were predicted
  std::int64_t bytes = 0;   // that these are as text
  /// Why batches were not given to a GPU as CUDA graphs, where that was tried.
  std::optional<std::string> graph_failure{};
  double loss() const { return nats / static_cast<double>(tokens); }
  double perplexity() const;
  double bits_per_byte() const;
};

/// The samples [0, samples) of a source, `batch` at a time; with `graphs` as CUDA graphs where a
/// GPU computes.
Result<TextScore> score_text(ExecutionContext& context, const LanguageModel& model,
                             const Tokenizer& tokenizer, SampleSource& source, std::int64_t samples,
                             std::int64_t batch, const OnProgress& progress = {},
                             bool graphs = true);

struct ChoiceScore {
  std::int64_t items = 0;
  std::int64_t right = 0;           // the answer has the highest probability
  std::int64_t right_per_byte = 0;  // ... the highest per byte of its text
};

/// JSONL, an item a line: {"context": "2 + 2 =", "choices": [" 4", " 5"], "answer": 0}. Context and
/// choice are tokenized as one text, with the tokens `before` it; what is too long loses its
/// beginning. ErrorCode::data names the line.
Result<ChoiceScore> score_choices(ExecutionContext& context, const LanguageModel& model,
                                  const Tokenizer& tokenizer,
                                  const std::vector<std::int32_t>& before,
                                  const std::filesystem::path& file,
                                  const OnProgress& progress = {});

}  // namespace sortie::trainer
