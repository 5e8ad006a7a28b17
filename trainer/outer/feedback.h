// ErrorFeedback: what rounding has taken from a site's changes, sent with its next ones.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace sortie::trainer::outer {

/// A site adds its error e to its change and keeps what the wire then loses: u = change + e,
/// e' = u - Q(u) (Seide et al. 2014). Where it owns a part of the vector it also keeps what the
/// rounding of the mean has lost there, divided by its weight: as if it had itself sent too little
/// by that (Tang et al. 2019, "DoubleSqueeze", keep it apart). So nothing is lost but by f32: over
/// rounds, the means and weight x error of all sites add up to the mean changes.
/// Takes 8 bytes per value in host memory. Not thread-safe.
class ErrorFeedback {
 public:
  explicit ErrorFeedback(std::size_t values) : error_(values) {}

  /// Of the committed rounds; part of a checkpoint. An exchange does not change it.
  std::span<const float> error() const { return error_; }
  /// As a checkpoint has it; the sizes are equal.
  void restore(std::span<const float> error);
  /// A site that (re)joins starts without.
  void reset();

  /// For exchange(): where the error as of this round is written.
  std::span<float> begin();
  /// The round that was exchanged last counts. Not without one.
  void commit();
  /// It does not count: the error is as before it.
  void rollback() { pending_ = false; }

 private:
  std::vector<float> error_, next_;
  bool pending_ = false;
};

}  // namespace sortie::trainer::outer
