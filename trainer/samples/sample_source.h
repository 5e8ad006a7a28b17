// SampleSource: training samples by global index, and what the trainer needs to know of its data.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/base/result.h"
#include "trainer/ops/targets.h"

namespace sortie::trainer {

class SampleSource {
 public:
  virtual ~SampleSource() = default;
  /// Reads sample `index` (any index >= 0; order and epochs are a pure function of seed and index):
  /// tokens[T], and as targets the token after each of them. A target is ops::kNoTarget where it
  /// does not count, and ops::kDocumentEnds where documents of a packed() source end.
  /// ErrorCode::data for a token id that the model does not have.
  virtual Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                          std::span<std::int32_t> targets) = 0;
  /// Identifies the data: equal on ranks that see the same files.
  virtual std::string fingerprint() const = 0;
  /// Describes for people what the order depends on besides the seed. Empty if nothing.
  virtual std::string order() const { return {}; }
  /// Whether targets may be negative. If so, the others are counted before each step.
  virtual bool masks_targets() const { return false; }
  /// Whether a sample can contain several documents, which must not attend to each other.
  virtual bool packed() const { return false; }
  /// Samples of one epoch.
  virtual std::int64_t samples_per_epoch() const = 0;
};

}  // namespace sortie::trainer
