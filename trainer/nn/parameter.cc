#include "trainer/nn/parameter.h"

#include <algorithm>

#include "trainer/ops/copy.h"

namespace sortie::trainer {

void Parameter::clear_gradient() {
  has_old_gradient_ = false;
  ops::fill(*context_, 0.0, grad_);
}

void Parameter::use_done() {
  if (!trained()) return;
  SORTIE_CHECK(pending_uses_ > 0, "{} has no use pending", name());
  if (pending_uses_ == 1 && has_old_gradient_) clear_gradient();
  if (--pending_uses_ == 0 && on_final_ != nullptr && *on_final_) (*on_final_)(*this);
}

std::vector<OwnPart> Parameter::own_parts() const {
  std::vector<OwnPart> parts;
  std::int64_t at = offset_;
  for (const GlobalBlock& block : blocks_) {
    for (const OwnRun& run : own_runs_) {
      const FlatRange flat{std::max(at, run.flat.begin),
                           std::min(at + block.elements(), run.flat.end)};
      const std::int64_t before = flat.begin - run.flat.begin;
      if (flat.elements() > 0)
        parts.push_back(
            {&block,
             flat.begin - at,
             {flat, run.values + before, run.master + before, run.moment + before, run.bucket}});
    }
    at += block.elements();
  }
  return parts;
}

}  // namespace sortie::trainer
