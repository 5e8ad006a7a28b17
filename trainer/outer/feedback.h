// ErrorFeedback: the rounding errors of a site's changes, which are added to its next changes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace sortie::trainer::outer {

/// A site adds its error e to its change and keeps the rounding error of the wire format: u =
/// change + e, e' = u - Q(u) (Seide et al. 2014). For the chunk that it owns, it also keeps the
/// rounding error of the mean, divided by its weight, as if it had sent too little by that itself
/// (Tang et al. 2019, "DoubleSqueeze", keep a separate error). So only f32 rounding loses anything:
/// over the rounds, the exchanged means plus weight x error of all sites add up to the exact mean
/// changes. Takes 8 bytes per value in host memory. Not thread-safe.
class ErrorFeedback {
 public:
  explicit ErrorFeedback(std::size_t values) : error_(values) {}

  /// The error as of the last committed round; part of a checkpoint. An exchange does not change
  /// it.
  std::span<const float> error() const { return error_; }
  /// Sets the error from a checkpoint; the sizes must be equal (checked).
  void restore(std::span<const float> error);
  /// Sets the error to zero, for a site that joins (again).
  void reset();

  /// For exchange(): returns the buffer for the error after this round.
  std::span<float> begin();
  /// Makes the error of the last exchange the current one. Requires an exchange (checked).
  void commit();
  /// Discards the error of the last exchange.
  void rollback() { pending_ = false; }

 private:
  std::vector<float> error_, next_;
  bool pending_ = false;
};

}  // namespace sortie::trainer::outer
