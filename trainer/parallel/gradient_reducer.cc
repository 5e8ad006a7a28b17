#include "trainer/parallel/gradient_reducer.h"

#include <algorithm>

#include "common/base/check.h"

namespace sortie::trainer {
namespace {
constexpr std::int64_t kLineElements = 16;  // f32 of a cache line
}

GradientReducer::GradientReducer(ParameterStore& store, Communicator& communicator,
                                 std::int64_t bucket_elements)
    : store_(store), communicator_(communicator) {
  const std::int64_t all = store.trained_elements();
  if (communicator_.size() == 1 || all == 0) return;
  const std::int64_t least = communicator_.size() * kLineElements;
  SORTIE_CHECK(all % least == 0, "{} trained elements on {} ranks", all, communicator_.size());
  unit_ = std::max<std::int64_t>((bucket_elements + least - 1) / least, 1) * least;
  for (std::int64_t begin = 0; begin < all; begin += unit_)
    buckets_.push_back({begin, std::min(begin + unit_, all), 0, 0, nullptr});
  for (const auto& parameter : store.parameters()) {
    if (!parameter->trained() || parameter->elements() == 0) continue;
    const std::int64_t last = parameter->offset() + parameter->elements() - 1;
    for (std::int64_t i = parameter->offset() / unit_; i <= last / unit_; ++i)
      ++buckets_[static_cast<std::size_t>(i)].parameters;
  }
}

void GradientReducer::begin() {
  if (buckets_.empty()) return;
  next_ = first_open_ = overlapped_ = 0;
  for (Bucket& bucket : buckets_) bucket.missing = bucket.parameters;
  store_.set_on_final([this](Parameter& parameter) {
    if (parameter.elements() == 0) return;
    const std::int64_t last = parameter.offset() + parameter.elements() - 1;
    for (std::int64_t i = parameter.offset() / unit_; i <= last / unit_; ++i) {
      Bucket& bucket = buckets_[static_cast<std::size_t>(i)];
      --bucket.missing;
      SORTIE_CHECK(bucket.missing >= 0, "gradient of {} became final twice", parameter.name());
    }
    issue_ready();
  });
}

void GradientReducer::issue_ready() {
  while (next_ < buckets_.size() && buckets_[next_].missing == 0) {
    Bucket& bucket = buckets_[next_];
    // The gradients are final where the stream will be, not where it is.
    bucket.handle = communicator_.all_reduce_async(
        store_.gradients().slice(0, bucket.begin, bucket.end - bucket.begin), ReduceOp::sum,
        store_.context().record());
    ++next_;
  }
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
