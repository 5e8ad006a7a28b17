// OuterState: the state of a part that is the same on all sites: the outer weights and their
// momentum, and the outer step that a round applies to them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/config/outer.h"

namespace sortie::trainer::outer {

/// Elements [begin, end) of a part's vector.
struct PartRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t elements() const { return end - begin; }
  bool operator==(const PartRange&) const = default;
};

std::int64_t elements_of(const std::vector<PartRange>& ranges);
/// Copies the values of ranges of a vector into a contiguous span, and back.
void take_ranges(std::span<const float> vector, const std::vector<PartRange>& ranges,
                 std::span<float> values);
void put_ranges(std::span<const float> values, const std::vector<PartRange>& ranges,
                std::span<float> vector);

struct OuterState {
  std::int64_t round = 0;       // last round whose changes of all fragments are applied
  std::vector<float> weights;   // theta [elements of the part]
  std::vector<float> momentum;  // v, of the same size

  /// Applies the outer step to `ranges`; `mean` has their elements. SGD with Nesterov's momentum on
  /// the mean change (Douillard et al. 2023, algorithm 1), in the form of torch.optim.SGD: v = mu v
  /// + mean; theta -= eta (mean + mu v), without Nesterov theta -= eta v. Each product and each sum
  /// is rounded to f32: the same bits on every CPU.
  void apply(const config::OuterSettings& settings, const std::vector<PartRange>& ranges,
             std::span<const float> mean);
  /// Sets `after` to the weights of `ranges` after that step, and does not change the state.
  void weights_after(const config::OuterSettings& settings, const std::vector<PartRange>& ranges,
                     std::span<const float> mean, std::span<float> after) const;
  /// XXH3 of the weights and the momentum.
  std::uint64_t hash() const;
};

}  // namespace sortie::trainer::outer
