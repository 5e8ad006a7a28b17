// DatasetSource: training samples from token files.
#pragma once

#include <memory>
#include <optional>

#include "common/config/schema.h"
#include "trainer/data/blend.h"
#include "trainer/data/dataset.h"
#include "trainer/data/scaling_order.h"
#include "trainer/samples/sample_source.h"

namespace sortie::trainer {

class DatasetSource final : public SampleSource {
 public:
  /// What the orders of other training suites depend on.
  struct Course {
    std::uint64_t samples = 0;     // that training takes in total
    std::uint64_t micro_step = 1;  // samples that all ranks together take per micro-step
  };
  /// Training samples are shuffled by the seed in the order of data.sampler, and blended by
  /// data.weights.
  static Result<std::unique_ptr<DatasetSource>> open_training(const config::JobConfig& job,
                                                              const Course& course);
  /// Validation samples are in stored order.
  static Result<std::unique_ptr<DatasetSource>> open_validation(
      const config::JobConfig& job, const std::vector<std::string>& prefixes);

  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override;
  std::string fingerprint() const override;
  std::string order() const override;
  std::int64_t samples_per_epoch() const override;

 private:
  DatasetSource() = default;
  /// Reads sample `number` into row_.
  Result<> read(std::uint64_t number);

  std::unique_ptr<ScalingOrder> scaling_;           // data.sampler = scaling; otherwise:
  std::vector<std::unique_ptr<Dataset>> datasets_;  // one, or one per weight
  std::optional<Blend> blend_;
  std::vector<std::int32_t> row_;
};

}  // namespace sortie::trainer
