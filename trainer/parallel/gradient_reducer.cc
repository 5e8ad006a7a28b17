#include "trainer/parallel/gradient_reducer.h"

#include <algorithm>

#include "common/base/check.h"

namespace sortie::trainer {
GradientReducer::GradientReducer(ParameterStore& store, Communicator& communicator,
                                 std::int64_t bucket_elements, Communicator* experts)
    : store_(store) {
  if (store.gathers() || store.own_momentum()) return;
  const auto group_of = [&](ReduceGroup group) -> Communicator& {
    return group == ReduceGroup::expert ? *experts : communicator;
  };
  bool reduces = false;
  for (const ParameterStore::Section& section : store.sections()) {
    SORTIE_CHECK(section.group == ReduceGroup::dense || experts != nullptr,
                 "no group for experts that are apart");
    reduces = reduces || group_of(section.group).size() > 1;
    if (store.sharded()) continue;
    for (const FlatRange& range :
         cut_into_buckets(section.range, bucket_elements, group_of(section.group).size()))
      ranges_.push_back(range);
  }
  if (!reduces) {
    ranges_.clear();
    return;
  }
  if (store.sharded()) ranges_ = store.buckets();
  buckets_.resize(ranges_.size());
  for (const ReduceGroup group : {ReduceGroup::dense, ReduceGroup::expert})
    if (group == ReduceGroup::dense || experts != nullptr) add_lane(group, group_of(group));
  for (const auto& parameter : store.parameters()) {
    if (!parameter->trained() || parameter->elements() == 0) continue;
    const auto [first, last] = span_of(*parameter);
    for (std::size_t i = first; i <= last; ++i) ++buckets_[i].parameters;
  }
}

void GradientReducer::add_lane(ReduceGroup reduced, Communicator& group) {
  if (group.size() == 1) return;  // nothing to sum
  Lane lane{.group = &group, .buckets = {}};
  for (std::size_t i = 0; i < ranges_.size(); ++i)
    if (store_.section_at(ranges_[i].begin).group == reduced) lane.buckets.push_back(i);
  lanes_.push_back(std::move(lane));
}

std::size_t GradientReducer::reduced_buckets() const {
  std::size_t sum = 0;
  for (const Lane& lane : lanes_) sum += lane.first_open;
  return sum;
}

BucketSpan GradientReducer::span_of(const Parameter& parameter) const {
  return buckets_of(ranges_, {parameter.offset(), parameter.offset() + parameter.elements()});
}

void GradientReducer::begin() {
  if (buckets_.empty()) return;
  overlapped_ = 0;
  for (Lane& lane : lanes_) lane.next = lane.first_open = 0;
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
  for (std::size_t i = 0; i < lanes_.size(); ++i)
    for (Lane& lane = lanes_[i];
         lane.next < lane.buckets.size() && buckets_[lane.buckets[lane.next]].missing == 0;) {
      const std::size_t place = lane.next;
      const auto act = [this, i, place] {
        Lane& of = lanes_[i];
        issue(*of.group, of.buckets[place]);  // may run deferred ops, which call poll()
        of.next = std::max(of.next, place + 1);
      };
      if (between_)
        between_(act);
      else
        act();
      lane.next = std::max(lane.next, place + 1);  // if it is performed later
    }
}

void GradientReducer::issue(Communicator& group, std::size_t index) {
  const auto gradients_of = [this](FlatRange range) {
    return store_.gradients().slice(0, range.begin, range.elements());
  };
  const Tensor all = gradients_of(ranges_[index]);
  // The gradients are final when the stream reaches this point.
  const Event ready = store_.context().record();
  if (on_reduced_) buckets_[index].begun = std::chrono::steady_clock::now();
  buckets_[index].handle =
      store_.sharded() ? group.reduce_scatter_async(all, gradients_of(store_.own_share(index)),
                                                    ReduceOp::sum, ready)
                       : group.all_reduce_async(all, ReduceOp::sum, ready);
}

void GradientReducer::completed(std::size_t index) {
  Bucket& bucket = buckets_[index];
  bucket.handle.reset();
  if (on_reduced_) on_reduced_(index, bucket.begun, std::chrono::steady_clock::now());
}

void GradientReducer::poll() {
  // Polling a reduction that waits for its gradients may run deferred ops, which call poll() again:
  // that call would release the handle that is polled here, and this one the next handle instead.
  if (polling_) return;
  polling_ = true;
  for (Lane& lane : lanes_)
    while (lane.first_open < lane.next) {
      const std::size_t index = lane.buckets[lane.first_open];
      const auto& handle = buckets_[index].handle;
      if (!handle || !handle->poll()) break;  // not begun yet, or in flight
      completed(index);
      ++lane.first_open;
    }
  polling_ = false;
}

void GradientReducer::finish() {
  if (buckets_.empty()) return;
  store_.set_on_final({});
  poll();
  overlapped_ = reduced_buckets();
  for (Bucket& bucket : buckets_) bucket.missing = 0;
  issue_ready();
  for (Lane& lane : lanes_)
    for (; lane.first_open < lane.buckets.size(); ++lane.first_open) {
      const std::size_t index = lane.buckets[lane.first_open];
      buckets_[index].handle->wait_on(store_.context());
      completed(index);
    }
}

}  // namespace sortie::trainer
