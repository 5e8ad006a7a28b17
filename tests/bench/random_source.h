// Samples of uniformly random tokens: the time of a step does not depend on their values.
#pragma once

#include <span>
#include <string>

#include "trainer/random/random.h"
#include "trainer/samples/sample_source.h"

namespace sortie::bench {

class RandomSource final : public trainer::SampleSource {
 public:
  explicit RandomSource(std::int64_t vocab) : vocab_(static_cast<std::uint64_t>(vocab)) {}
  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::uint64_t at = static_cast<std::uint64_t>(index) * tokens.size() + i;
      tokens[i] = static_cast<std::int32_t>(trainer::random_bits(1, at) % vocab_);
      targets[i] = static_cast<std::int32_t>(trainer::random_bits(1, at + 1) % vocab_);
    }
    return {};
  }
  std::string fingerprint() const override { return "random"; }
  std::int64_t samples_per_epoch() const override { return 1 << 20; }

 private:
  std::uint64_t vocab_;
};

}  // namespace sortie::bench
