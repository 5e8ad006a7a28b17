#include "trainer/dataset_source.h"

#include <algorithm>

namespace sortie::trainer {

Result<std::unique_ptr<DatasetSource>> DatasetSource::open(const config::JobConfig& job,
                                                           const std::vector<std::string>& prefixes,
                                                           bool shuffle) {
  DatasetOptions options;
  options.prefixes = prefixes;
  options.sequence_length = job.model.sequence_length;
  options.vocab_size = job.model.vocab_size;
  options.seed = static_cast<std::uint64_t>(job.trainer.seed);
  options.shuffle = shuffle;
  SORTIE_ASSIGN_OR_RETURN(auto dataset, Dataset::open(std::move(options)));
  return std::unique_ptr<DatasetSource>(new DatasetSource(std::move(dataset)));
}

Result<> DatasetSource::sample(std::int64_t index, std::span<std::int32_t> tokens,
                               std::span<std::int32_t> targets) {
  row_.resize(tokens.size() + 1);
  SORTIE_TRY(dataset_->read_sample(static_cast<std::uint64_t>(index), row_));
  std::copy(row_.begin(), row_.end() - 1, tokens.begin());
  std::copy(row_.begin() + 1, row_.end(), targets.begin());
  return {};
}

}  // namespace sortie::trainer
