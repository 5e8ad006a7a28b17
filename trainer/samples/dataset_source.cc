#include "trainer/samples/dataset_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "trainer/storage/sha256.h"

namespace sortie::trainer {

namespace {

DatasetOptions options_of(const config::JobConfig& job, bool shuffle) {
  DatasetOptions options;
  options.sequence_length = job.model.sequence_length;
  options.vocab_size = job.model.vocab_size;
  options.seed = static_cast<std::uint64_t>(job.trainer.seed);
  options.shuffle = shuffle;
  return options;
}

ScalingOptions scaling_options_of(const config::JobConfig& job, std::vector<double> weights,
                                  std::uint64_t micro_step) {
  ScalingOptions options;
  options.prefixes = job.data.data_prefixes;
  options.weights = std::move(weights);
  options.sequence_length = job.model.sequence_length;
  options.vocab_size = job.model.vocab_size;
  options.seed = static_cast<std::uint64_t>(job.trainer.seed);
  options.group = micro_step;
  return options;
}

}  // namespace

Result<std::unique_ptr<DatasetSource>> DatasetSource::open_validation(
    const config::JobConfig& job, const std::vector<std::string>& prefixes) {
  std::unique_ptr<DatasetSource> source(new DatasetSource);
  DatasetOptions options = options_of(job, /*shuffle=*/false);
  options.prefixes = prefixes;
  SORTIE_ASSIGN_OR_RETURN(auto dataset, Dataset::open(std::move(options)));
  source->datasets_.push_back(std::move(dataset));
  return source;
}

Result<std::unique_ptr<DatasetSource>> DatasetSource::open_training(const config::JobConfig& job,
                                                                    const Course& course) {
  std::vector<double> weights;  // checked with the config: one per prefix, or none
  for (const std::string& weight : job.data.weights)
    weights.push_back(std::strtod(weight.c_str(), nullptr));
  const std::vector<std::string>& prefixes = job.data.data_prefixes;
  std::unique_ptr<DatasetSource> source(new DatasetSource);
  if (job.data.sampler == "scaling") {
    SORTIE_ASSIGN_OR_RETURN(source->scaling_, ScalingOrder::open(scaling_options_of(
                                                  job, std::move(weights), course.micro_step)));
    return source;
  }
  const bool megatron = job.data.sampler == "megatron";
  DatasetOptions options = options_of(job, /*shuffle=*/true);
  if (weights.empty()) {
    options.prefixes = prefixes;
    options.megatron_samples = megatron ? course.samples : 0;
    SORTIE_ASSIGN_OR_RETURN(auto dataset, Dataset::open(std::move(options)));
    source->datasets_.push_back(std::move(dataset));
    return source;
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    options.prefixes = {prefixes[i]};
    options.megatron_samples =
        megatron ? Blend::samples_of_share(weights[i] / sum, course.samples) : 0;
    SORTIE_ASSIGN_OR_RETURN(auto dataset, Dataset::open(options));
    source->datasets_.push_back(std::move(dataset));
  }
  source->blend_.emplace(std::move(weights));
  return source;
}

Result<> DatasetSource::read(std::uint64_t number) {
  if (scaling_) return scaling_->read_sample(number, row_);
  const Blend::Pick pick = blend_ ? blend_->at(number) : Blend::Pick{0, number};
  return datasets_[pick.dataset]->read_sample(pick.sample, row_);
}

Result<> DatasetSource::sample(std::int64_t index, std::span<std::int32_t> tokens,
                               std::span<std::int32_t> targets) {
  row_.resize(tokens.size() + 1);
  SORTIE_TRY(read(static_cast<std::uint64_t>(index)));
  std::copy(row_.begin(), row_.end() - 1, tokens.begin());
  std::copy(row_.begin() + 1, row_.end(), targets.begin());
  return {};
}

std::string DatasetSource::fingerprint() const {
  if (scaling_) return scaling_->fingerprint();
  if (datasets_.size() == 1) return datasets_[0]->fingerprint();
  std::string all;
  for (const auto& dataset : datasets_) all += dataset->fingerprint();
  return sha256_hex(all);
}

std::string DatasetSource::order() const {
  std::vector<std::string> orders;
  for (const auto& dataset : datasets_)
    if (std::string order = dataset->order_text(); !order.empty())
      orders.push_back(std::move(order));
  return fmt::format("{}", fmt::join(orders, "; "));
}

std::int64_t DatasetSource::samples_per_epoch() const {
  if (scaling_) return static_cast<std::int64_t>(scaling_->samples_per_epoch());
  std::uint64_t all = 0;
  for (const auto& dataset : datasets_) all += dataset->samples_per_epoch();
  return static_cast<std::int64_t>(all);
}

}  // namespace sortie::trainer
