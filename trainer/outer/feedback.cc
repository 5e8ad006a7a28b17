#include "trainer/outer/feedback.h"

#include <algorithm>

#include "common/base/check.h"

namespace sortie::trainer::outer {

void ErrorFeedback::restore(std::span<const float> error) {
  SORTIE_CHECK(error.size() == error_.size(), "{} errors of {} values", error.size(),
               error_.size());
  std::ranges::copy(error, error_.begin());
  pending_ = false;
}

void ErrorFeedback::reset() {
  std::ranges::fill(error_, 0.0f);
  pending_ = false;
}

std::span<float> ErrorFeedback::begin() {
  next_.resize(error_.size());
  pending_ = true;
  return next_;
}

void ErrorFeedback::commit() {
  SORTIE_CHECK(pending_, "no exchange to commit");
  std::swap(error_, next_);
  pending_ = false;
}

}  // namespace sortie::trainer::outer
