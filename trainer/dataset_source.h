// DatasetSource: token files as the trainer's samples.
#pragma once

#include <memory>

#include "common/config/schema.h"
#include "trainer/data/dataset.h"
#include "trainer/sample_source.h"

namespace sortie::trainer {

class DatasetSource final : public SampleSource {
 public:
  /// Training samples are shuffled by the seed, validation samples come as stored.
  static Result<std::unique_ptr<DatasetSource>> open(const config::JobConfig& job,
                                                     const std::vector<std::string>& prefixes,
                                                     bool shuffle);

  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override;
  std::string fingerprint() const override { return dataset_->fingerprint(); }
  std::int64_t samples_per_epoch() const override {
    return static_cast<std::int64_t>(dataset_->samples_per_epoch());
  }

 private:
  explicit DatasetSource(std::unique_ptr<Dataset> dataset) : dataset_(std::move(dataset)) {}
  std::unique_ptr<Dataset> dataset_;
  std::vector<std::int32_t> row_;
};

}  // namespace sortie::trainer
