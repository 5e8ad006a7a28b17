#include "trainer/dataset_source.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "trainer/storage/sha256.h"

namespace sortie::trainer {

Result<std::unique_ptr<DatasetSource>> DatasetSource::open(const config::JobConfig& job,
                                                           const std::vector<std::string>& prefixes,
                                                           bool shuffle, std::uint64_t samples) {
  DatasetOptions options;
  options.sequence_length = job.model.sequence_length;
  options.vocab_size = job.model.vocab_size;
  options.seed = static_cast<std::uint64_t>(job.trainer.seed);
  options.shuffle = shuffle;
  const bool megatron = shuffle && job.data.sampler == "megatron";
  std::unique_ptr<DatasetSource> source(new DatasetSource);
  std::vector<double> weights;  // checked with the config: one per prefix, or none
  if (shuffle)
    for (const std::string& weight : job.data.weights)
      weights.push_back(std::strtod(weight.c_str(), nullptr));
  if (weights.empty()) {
    options.prefixes = prefixes;
    options.megatron_samples = megatron ? samples : 0;
    SORTIE_ASSIGN_OR_RETURN(auto dataset, Dataset::open(std::move(options)));
    source->datasets_.push_back(std::move(dataset));
    return source;
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    options.prefixes = {prefixes[i]};
    options.megatron_samples = megatron ? Blend::samples_of_share(weights[i] / sum, samples) : 0;
    SORTIE_ASSIGN_OR_RETURN(auto dataset, Dataset::open(options));
    source->datasets_.push_back(std::move(dataset));
  }
  source->blend_.emplace(weights, samples);
  return source;
}

Result<> DatasetSource::sample(std::int64_t index, std::span<std::int32_t> tokens,
                               std::span<std::int32_t> targets) {
  row_.resize(tokens.size() + 1);
  const auto number = static_cast<std::uint64_t>(index);
  const Blend::Pick pick = blend_ ? blend_->at(number) : Blend::Pick{0, number};
  SORTIE_TRY(datasets_[pick.dataset]->read_sample(pick.sample, row_));
  std::copy(row_.begin(), row_.end() - 1, tokens.begin());
  std::copy(row_.begin() + 1, row_.end(), targets.begin());
  return {};
}

std::string DatasetSource::fingerprint() const {
  if (datasets_.size() == 1) return datasets_[0]->fingerprint();
  std::string all;
  for (const auto& dataset : datasets_) all += dataset->fingerprint();
  return sha256_hex(all);
}

std::int64_t DatasetSource::samples_per_epoch() const {
  std::uint64_t all = 0;
  for (const auto& dataset : datasets_) all += dataset->samples_per_epoch();
  return static_cast<std::int64_t>(all);
}

}  // namespace sortie::trainer
