// DatasetSource: token files as the trainer's samples.
#pragma once

#include <memory>
#include <optional>

#include "common/config/schema.h"
#include "trainer/data/blend.h"
#include "trainer/data/dataset.h"
#include "trainer/sample_source.h"

namespace sortie::trainer {

class DatasetSource final : public SampleSource {
 public:
  /// Training samples are shuffled by the seed, in the order of data.sampler and by data.weights;
  /// both want to know how many `samples` training takes. Validation samples come as stored.
  static Result<std::unique_ptr<DatasetSource>> open(const config::JobConfig& job,
                                                     const std::vector<std::string>& prefixes,
                                                     bool shuffle, std::uint64_t samples = 0);

  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override;
  std::string fingerprint() const override;
  std::int64_t samples_per_epoch() const override;

 private:
  DatasetSource() = default;

  std::vector<std::unique_ptr<Dataset>> datasets_;  // one, or one per weight
  std::optional<Blend> blend_;
  std::vector<std::int32_t> row_;
};

}  // namespace sortie::trainer
