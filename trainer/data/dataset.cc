#include "trainer/data/dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "common/base/check.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {

Dataset::Dataset(DatasetOptions options, std::vector<TokenFile> files)
    : options_(std::move(options)),
      files_(std::move(files)),
      table_(files_),
      samples_per_epoch_(EpochOrder::num_samples(table_.tokens(), options_.sequence_length)) {}

Result<std::unique_ptr<Dataset>> Dataset::open(DatasetOptions options) {
  SORTIE_CHECK(options.sequence_length > 0 && options.vocab_size > 0);
  if (options.prefixes.empty())
    return fail(ErrorCode::data, "data: no prefix given; set data.data_prefixes");
  std::vector<TokenFile> files;
  for (const std::string& prefix : options.prefixes) {
    SORTIE_ASSIGN_OR_RETURN(TokenFile file, TokenFile::open(prefix));
    files.push_back(std::move(file));
  }
  std::unique_ptr<Dataset> dataset(new Dataset(std::move(options), std::move(files)));
  if (dataset->samples_per_epoch() == 0)
    return fail(ErrorCode::data,
                fmt::format("{}{}: {} tokens are not enough for one sample of {} + 1; give more "
                            "text or a smaller model.sequence_length",
                            dataset->options().prefixes.front(),
                            dataset->options().prefixes.size() > 1 ? " and the others" : "",
                            dataset->num_tokens(), dataset->options().sequence_length));
  const DatasetOptions& own = dataset->options_;
  if (own.shuffle && own.megatron_samples > 0) {
    SORTIE_TRY(dataset->check_megatron());
    dataset->megatron_.emplace(dataset->table_, own.sequence_length,
                               static_cast<std::uint32_t>(own.seed), own.megatron_samples);
  }
  return dataset;
}

Result<> Dataset::check_megatron() const {
  for (const TokenFile& file : files_)
    if (file.index().num_sequences() != file.num_documents())
      return fail(ErrorCode::data,
                  fmt::format("{}.idx: {} documents of {} sequences; data.sampler = megatron is "
                              "known for one sequence per document",
                              file.prefix(), file.num_documents(), file.index().num_sequences()));
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max() - 1;
  const std::uint64_t epochs = options_.megatron_samples / samples_per_epoch_ + 2;
  if (epochs >= kMost / samples_per_epoch_ || epochs >= kMost / table_.size() ||
      options_.seed > kMost)
    return fail(ErrorCode::data,
                fmt::format("{}: {} samples, {} epochs of {} documents, seed {}: data.sampler = "
                            "megatron counts each with 32 bits",
                            options_.prefixes.front(), options_.megatron_samples, epochs,
                            table_.size(), options_.seed));
  return {};
}

const EpochOrder& Dataset::order(std::uint64_t epoch) {
  constexpr std::size_t kKept = 2;
  const auto found = std::find_if(orders_.begin(), orders_.end(),
                                  [&](const EpochOrder& order) { return order.epoch() == epoch; });
  if (found != orders_.end()) {
    orders_.splice(orders_.begin(), orders_, found);
  } else {
    orders_.emplace_front(table_, options_.sequence_length, options_.seed, epoch, options_.shuffle);
    if (orders_.size() > kKept) orders_.pop_back();
  }
  return orders_.front();
}

Result<> Dataset::read_sample(std::uint64_t sample, std::span<std::int32_t> out) {
  if (megatron_) return megatron_->read(sample, options_.vocab_size, out);
  // Without a shuffle every epoch is the same, so one order serves all.
  const std::uint64_t epoch = options_.shuffle ? sample / samples_per_epoch_ : 0;
  return order(epoch).read(sample % samples_per_epoch_, options_.vocab_size, out);
}

std::string Dataset::order_text() const {
  return megatron_ ? megatron_->text() : "";
}

std::string Dataset::fingerprint() const {
  std::string text;
  for (const TokenFile& file : files_) text += file.fingerprint();
  return sha256_hex(text);
}

}  // namespace sortie::trainer
