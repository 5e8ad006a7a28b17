#include "trainer/parallel/layer_gatherer.h"

#include <algorithm>
#include <exception>

#include "common/base/check.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"

namespace sortie::trainer {

LayerGatherer::LayerGatherer(ParameterStore& store, Communicator& replicas)
    : store_(store), replicas_(replicas), rooms_(store.rooms()) {
  SORTIE_CHECK(store.gathers(), "every replica has whole weights");
  SORTIE_CHECK(!store.context().keeps_packed_weights(), "packed copies of weights that go");
  store_.set_on_use([this](const Parameter* parameter) {
    if (parameter != nullptr) return use(parameter->unit());
    for (Room& room : rooms_) await_values(room);
  });
  store_.set_on_gradient([this](const Parameter& parameter) { write_gradient(parameter.unit()); });
}

LayerGatherer::~LayerGatherer() {
  store_.set_on_use({});
  store_.set_on_gradient({});
  if (std::uncaught_exceptions() > 0) return;
  try {
    for (const Room& room : rooms_)
      for (const Handles* handles : {&room.coming, &room.leaving})
        for (const auto& handle : *handles) handle->wait();
  } catch (const CommunicatorError&) {  // the collective that failed first has reported it
  }
}

void LayerGatherer::begin(bool training, std::int64_t micro_batches) {
  kind_ = {training, micro_batches};
  order_.clear();
  used_.reset();
  follows_ = true;
}

void LayerGatherer::poll() {
  // Polling one unfinished handle makes progress on all. Finished ones are kept until a stream
  // waits for them.
  for (const Room& room : rooms_)
    for (const Handles* handles : {&room.coming, &room.leaving})
      for (const auto& handle : *handles)
        if (!handle->poll()) return;
}

void LayerGatherer::use(std::size_t unit) {
  if (used_ == unit) return;
  used_ = unit;
  order_.push_back(unit);
  Room& room = room_of(unit);
  if (room.unit != unit)
    gather(unit);
  else if (room.ahead)
    ++used_ahead_;
  room.ahead = false;
  await_values(room);
  gather_following();
}

void LayerGatherer::gather(std::size_t unit) {
  Room& room = room_of(unit);
  await_values(room);  // of a unit that was prefetched and not used
  room.unit = unit;
  room.ahead = true;
  ++gathered_;
  // The work that was added to the stream so far is the last that reads the room's old values.
  const Event ready = store_.context().record();
  for (const UnitRange& range : store_.units()[unit].ranges)
    room.coming.push_back(replicas_.all_gather_async(
        store_.own_values(range), store_.whole_values(store_.units()[unit], range), ready));
}

void LayerGatherer::await_values(Room& room) {
  for (const auto& handle : room.coming) handle->wait_on(store_.context());
  room.coming.clear();
}

/// Prefetches the next units in the order of the last step, each into a room that is not needed
/// before: the room of the current unit is in use, and others may have units that are used again
/// earlier.
void LayerGatherer::gather_following() {
  constexpr std::size_t kAhead = 4;  // a small unit may be between two large ones
  const std::vector<std::size_t>& expected = orders_[kind_];
  const std::size_t place = order_.size() - 1;
  follows_ = follows_ && place < expected.size() && expected[place] == *used_;
  if (!follows_) return;
  std::vector<bool> needed(rooms_.size());
  needed[store_.units()[*used_].room] = true;
  for (std::size_t i = place + 1; i < std::min(place + 1 + kAhead, expected.size()); ++i) {
    const std::size_t number = store_.units()[expected[i]].room;
    if (rooms_[number].unit != expected[i]) {
      if (needed[number]) return;
      gather(expected[i]);
    }
    needed[number] = true;
  }
}

void LayerGatherer::write_gradient(std::size_t unit) {
  if (written_ == unit) return;
  if (written_) sum_gradients(*written_);
  written_ = unit;
  settle(room_of(unit));
  for (const UnitRange& range : store_.units()[unit].ranges) {
    if (!range.trained) continue;
    Tensor gradients = store_.whole_gradients(store_.units()[unit], range);
    ops::fill(store_.context(), 0.0, gradients);
  }
}

void LayerGatherer::sum_gradients(std::size_t unit) {
  Room& room = room_of(unit);
  room.summed = unit;
  const Event ready = store_.context().record();
  for (const UnitRange& range : store_.units()[unit].ranges) {
    if (!range.trained) continue;
    const Tensor all = store_.whole_gradients(store_.units()[unit], range);
    room.leaving.push_back(
        replicas_.reduce_scatter_async(all, store_.own_part_of(all), ReduceOp::sum, ready));
  }
}

void LayerGatherer::settle(Room& room) {
  if (!room.summed) return;
  for (const auto& handle : room.leaving) handle->wait_on(store_.context());
  room.leaving.clear();
  const Unit& unit = store_.units()[*room.summed];
  room.summed.reset();
  for (const UnitRange& range : unit.ranges) {
    if (!range.trained) continue;
    Tensor own = store_.own_gradients(range);
    ops::add(store_.context(), own, store_.own_part_of(store_.whole_gradients(unit, range)), own);
  }
}

void LayerGatherer::finish() {
  if (written_) sum_gradients(*written_);
  written_.reset();
  for (Room& room : rooms_) settle(room);
  orders_[kind_] = order_;
}

void LayerGatherer::forget() {
  for (Room& room : rooms_) {
    await_values(room);
    room.unit.reset();
  }
  used_.reset();
}

void LayerGatherer::gather_ahead() {
  for (const auto& [kind, order] : orders_) {
    const bool training = kind.first;
    if (!training || order.empty()) continue;
    if (room_of(order.front()).unit != order.front()) gather(order.front());
    return;
  }
}

}  // namespace sortie::trainer
