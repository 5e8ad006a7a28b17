#include "trainer/parallel/gradient_reducer.h"

#include <algorithm>
#include <ranges>

#include "common/base/check.h"

namespace sortie::trainer {

GradientReducer::GradientReducer(ParameterStore& store, Communicator& communicator,
                                 std::int64_t bucket_elements)
    : store_(store), communicator_(communicator) {
  if (communicator_.size() == 1) return;
  // The flat layout is the reverse of the order of declaration.
  std::vector<const Parameter*> trained;
  for (const auto& parameter : std::views::reverse(store.parameters()))
    if (parameter->trained()) trained.push_back(parameter.get());
  Bucket current;
  for (std::size_t i = 0; i < trained.size(); ++i) {
    ++current.parameters;
    const bool last = i + 1 == trained.size();
    current.end = last ? store.trained_elements() : trained[i + 1]->offset();
    if (last || current.end - current.begin >= bucket_elements) {
      const std::int64_t end = current.end;
      buckets_.push_back(std::move(current));
      current = Bucket{};
      current.begin = end;
    }
  }
}

void GradientReducer::begin() {
  if (buckets_.empty()) return;
  next_ = first_open_ = overlapped_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.missing = bucket.parameters;
  }
  store_.set_on_final([this](Parameter& parameter) {
    const auto it = std::upper_bound(
        buckets_.begin(), buckets_.end(), parameter.offset(),
        [](std::int64_t offset, const Bucket& bucket) { return offset < bucket.end; });
    --it->missing;
    SORTIE_CHECK(it->missing >= 0, "gradient of {} became final twice", parameter.name());
    issue_ready();
  });
}

void GradientReducer::issue_ready() {
  while (next_ < buckets_.size() && buckets_[next_].missing == 0) {
    Bucket& bucket = buckets_[next_];
    // Waits for ops, which poll: the bucket counts when it has its handle.
    bucket.values = std::make_unique<ops::HostAccess<float>>(
        store_.context(), store_.gradients().slice(0, bucket.begin, bucket.end - bucket.begin));
    bucket.handle = communicator_.all_reduce_sum_async(bucket.values->span());
    ++next_;
  }
}

void GradientReducer::poll() {
  while (first_open_ < next_ && buckets_[first_open_].handle->poll()) {
    buckets_[first_open_].handle.reset();
    buckets_[first_open_].values.reset();
    ++first_open_;
  }
}

void GradientReducer::finish() {
  if (buckets_.empty()) return;
  store_.set_on_final({});
  poll();
  overlapped_ = first_open_;
  for (Bucket& bucket : buckets_) bucket.missing = 0;
  issue_ready();
  for (; first_open_ < buckets_.size(); ++first_open_) {
    buckets_[first_open_].handle->wait();
    buckets_[first_open_].handle.reset();
    buckets_[first_open_].values.reset();
  }
}

}  // namespace sortie::trainer
