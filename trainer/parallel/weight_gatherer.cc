#include "trainer/parallel/weight_gatherer.h"

#include <exception>

#include "common/base/check.h"

namespace sortie::trainer {

WeightGatherer::WeightGatherer(ParameterStore& store, Communicator& replicas, Communicator* experts)
    : store_(store),
      replicas_(replicas),
      experts_(experts),
      handles_(store.gathers() ? 0 : store.buckets().size()) {
  if (!handles_.empty())
    store_.set_on_use([this](const Parameter* parameter) { await(parameter); });
}

WeightGatherer::~WeightGatherer() {
  if (handles_.empty()) return;
  store_.set_on_use({});
  if (std::uncaught_exceptions() > 0) return;
  try {
    for (const auto& handle : handles_)
      if (handle) handle->wait();
  } catch (const CommunicatorError&) {  // the collective that failed first has reported it
  }
}

void WeightGatherer::start(std::size_t bucket) {
  if (handles_.empty()) return;
  SORTIE_CHECK(!handles_[bucket], "bucket {} is gathered while it is on its way", bucket);
  const FlatRange all = store_.buckets()[bucket];
  const bool apart = store_.section_at(all.begin).group == ReduceGroup::expert;
  Communicator& group = apart ? *experts_ : replicas_;
  if (group.size() == 1) return;  // its share is all of it
  handles_[bucket] = group.all_gather_async(store_.values_of(store_.own_share(bucket)),
                                            store_.values_of(all), store_.context().record());
  ++open_;
}

void WeightGatherer::start_all() {
  for (std::size_t i = handles_.size(); i-- > 0;) start(i);
}

void WeightGatherer::poll() {
  if (open_ == 0) return;
  // Polling one handle makes progress on all. Finished ones are kept until a stream waits for them.
  for (const auto& handle : handles_)
    if (handle) {
      (void)handle->poll();
      return;
    }
}

void WeightGatherer::await_bucket(std::size_t bucket) {
  if (!handles_[bucket]) return;
  const std::unique_ptr<CollectiveHandle> handle = std::move(handles_[bucket]);
  --open_;
  handle->wait_on(store_.context());
}

void WeightGatherer::await(const Parameter* parameter) {
  const bool captured = capturing_ && capturing_();
  if (open_ == 0 && !captured) return;
  if (parameter == nullptr) return finish();
  if (!parameter->trained() || parameter->elements() == 0) return;
  const BucketSpan span = buckets_of(
      store_.buckets(), {parameter->offset(), parameter->offset() + parameter->elements()});
  for (std::size_t bucket = span.first; bucket <= span.last; ++bucket) {
    if (!captured)
      await_bucket(bucket);
    else if (!given_[bucket])
      between_([this, bucket] { await_bucket(bucket); });
    if (captured) given_[bucket] = true;
  }
}

void WeightGatherer::finish() {
  for (std::size_t i = handles_.size(); i-- > 0;) await_bucket(i);
}

}  // namespace sortie::trainer
