#include "trainer/parallel/gradient_reducer.h"

#include "common/base/check.h"

namespace sortie::trainer {
GradientReducer::GradientReducer(ParameterStore& store, Communicator& communicator,
                                 std::int64_t bucket_elements)
    : store_(store), communicator_(communicator) {
  const std::int64_t all = store.trained_elements();
  if (communicator_.size() == 1 || all == 0 || store.gathers()) return;
  ranges_ = store.sharded() ? store.buckets()
                            : cut_into_buckets({0, all}, bucket_elements, communicator_.size());
  buckets_.resize(ranges_.size());
  for (const auto& parameter : store.parameters()) {
    if (!parameter->trained() || parameter->elements() == 0) continue;
    const auto [first, last] = span_of(*parameter);
    for (std::size_t i = first; i <= last; ++i) ++buckets_[i].parameters;
  }
}

BucketSpan GradientReducer::span_of(const Parameter& parameter) const {
  return buckets_of(ranges_, {parameter.offset(), parameter.offset() + parameter.elements()});
}

void GradientReducer::begin() {
  if (buckets_.empty()) return;
  next_ = first_open_ = overlapped_ = 0;
  for (Bucket& bucket : buckets_) bucket.missing = bucket.parameters;
  store_.set_on_final([this](Parameter& parameter) {
    if (parameter.elements() == 0) return;
    const auto [first, last] = span_of(parameter);
    for (std::size_t i = first; i <= last; ++i) {
      Bucket& bucket = buckets_[i];
      --bucket.missing;
      SORTIE_CHECK(bucket.missing >= 0, "gradient of {} became final twice", parameter.name());
    }
    issue_ready();
  });
}

void GradientReducer::issue_ready() {
  while (next_ < buckets_.size() && buckets_[next_].missing == 0) {
    issue(next_);  // late ops, which poll, may be done in there
    ++next_;
  }
}

void GradientReducer::issue(std::size_t index) {
  const auto gradients_of = [this](FlatRange range) {
    return store_.gradients().slice(0, range.begin, range.elements());
  };
  const Tensor all = gradients_of(ranges_[index]);
  // The gradients are final where the stream will be, not where it is.
  const Event ready = store_.context().record();
  buckets_[index].handle =
      store_.sharded() ? communicator_.reduce_scatter_async(
                             all, gradients_of(store_.own_share(index)), ReduceOp::sum, ready)
                       : communicator_.all_reduce_async(all, ReduceOp::sum, ready);
}

void GradientReducer::poll() {
  while (first_open_ < next_ && buckets_[first_open_].handle->poll())
    buckets_[first_open_++].handle.reset();
}

void GradientReducer::finish() {
  if (buckets_.empty()) return;
  store_.set_on_final({});
  poll();
  overlapped_ = first_open_;
  for (Bucket& bucket : buckets_) bucket.missing = 0;
  issue_ready();
  for (; first_open_ < buckets_.size(); ++first_open_) {
    buckets_[first_open_].handle->wait_on(store_.context());
    buckets_[first_open_].handle.reset();
  }
}

}  // namespace sortie::trainer
