#include "trainer/outer/part_map.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/base/check.h"
#include "trainer/hf/open_model.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"

namespace sortie::trainer::outer {
namespace {

Piece piece_of_block(const ParameterSpec& spec, const GlobalBlock& block, const Dims& shape) {
  if (block.elements() == spec.shape.elements()) return Piece::whole(shape);
  if (shape.size() == 1) return Piece::box({block.row}, {block.rows});
  return Piece::box({block.row, block.column}, {block.rows, block.columns});
}

std::string text_of(const std::vector<PartPiece>& pieces) {
  nlohmann::json json = nlohmann::json::array();
  for (const PartPiece& p : pieces)
    json.push_back(
        {p.name, p.shape, p.piece.offset, p.piece.extent, p.piece.begin, p.piece.end, p.at});
  return json.dump();
}

/// Parses the text of a peer, which runs the same program: another format is a bug.
std::vector<PartPiece> pieces_from(const std::string& text) {
  std::vector<PartPiece> pieces;
  for (const nlohmann::json& json : nlohmann::json::parse(text)) {
    PartPiece& piece = pieces.emplace_back();
    piece.name = json.at(0).get<std::string>();
    piece.shape = json.at(1).get<Dims>();
    piece.piece.offset = json.at(2).get<Dims>();
    piece.piece.extent = json.at(3).get<Dims>();
    piece.piece.begin = json.at(4).get<std::int64_t>();
    piece.piece.end = json.at(5).get<std::int64_t>();
    piece.at = json.at(6).get<std::int64_t>();
  }
  return pieces;
}

/// Wraps a vector that may be empty: a tensor must have memory.
template <class T>
Tensor host_tensor(std::vector<T>& values) {
  const auto size = static_cast<std::int64_t>(values.size());
  values.reserve(1);
  return Tensor::wrap(values.data(), dtype_of<T>(), {size});
}

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// Values of a message. They are as many as the model has, so they are left uninitialised.
struct Scratch {
  explicit Scratch(std::int64_t elements)
      : count(elements),
        values(std::make_unique_for_overwrite<float[]>(
            static_cast<std::size_t>(std::max<std::int64_t>(elements, 1)))) {}
  Tensor tensor() const { return Tensor::wrap(values.get(), DType::f32, {count}); }

  std::int64_t count;
  std::unique_ptr<float[]> values;
};

}  // namespace

std::int64_t PartMap::Run::place(PartValues values) const {
  if (values == PartValues::weights) return master;
  return values == PartValues::gradients ? gradient : moment;
}

/// Like Checkpointer::owns(): of the ranks that hold a parameter, one saves it.
bool PartMap::saves(const Parameter& parameter) const {
  const CutRule& cut = parameter.spec().cut;
  return parameter.spec().tied_to.empty() &&
         (cut.axis || layout_.places().of(cut.group).index == 0);
}

bool PartMap::first_of_replicas(const Parameter& parameter) const {
  const bool apart = store_.held_by(parameter) == ReduceGroup::expert;
  return (apart ? layout_.expert_replicas() : layout_.replicas()).rank() == 0;
}

void PartMap::find_own_pieces() {
  std::map<std::string, const Parameter*> by_name;
  for (const auto& parameter : store_.parameters())
    if (parameter->trained() && saves(*parameter) && first_of_replicas(*parameter))
      by_name.emplace(parameter->name(), parameter.get());
  for (const auto& [name, parameter] : by_name) {
    const Dims shape = dims_of(parameter->spec().shape);
    for (const GlobalBlock& block : parameter->blocks()) {
      if (block.repeated || block.elements() == 0) continue;
      const Piece piece = piece_of_block(parameter->spec(), block, shape);
      pieces_.push_back({name, shape, piece, elements_});
      elements_ += piece.elements();
    }
  }
}

/// Returns the pieces that every rank leads, and numbers the parts in rank order. Collective.
std::vector<std::vector<PartPiece>> PartMap::tell_pieces() {
  std::vector<std::vector<PartPiece>> leaders;
  const Communicator& world = layout_.world();
  for (const std::string& text : layout_.world().all_gather(text_of(pieces_)))
    leaders.push_back(pieces_from(text));
  for (std::size_t rank = 0; rank < leaders.size(); ++rank) {
    if (leaders[rank].empty() && rank > 0) continue;
    if (static_cast<int>(rank) == world.rank()) part_ = parts_;
    ++parts_;
  }
  return leaders;
}

/// `copies`: includes elements that this rank repeats of others. If replicas hold the same values,
/// only the first replica takes part.
PartMap::Way PartMap::find_way(const std::vector<std::vector<PartPiece>>& leaders, bool copies) {
  struct Place {
    std::size_t leader;
    const PartPiece* piece;
  };
  std::map<std::string_view, std::vector<Place>> by_name;
  for (std::size_t leader = 0; leader < leaders.size(); ++leader)
    for (const PartPiece& piece : leaders[leader]) by_name[piece.name].push_back({leader, &piece});
  std::vector<std::vector<Run>> runs(leaders.size());
  for (const auto& parameter : store_.parameters()) {
    if (!parameter->trained() || (!copies && !saves(*parameter))) continue;
    if (!store_.keeps_share_of(*parameter) && !first_of_replicas(*parameter)) continue;
    const auto found = by_name.find(parameter->spec().whole_name());
    SORTIE_CHECK(found != by_name.end(), "no rank leads {}", parameter->name());
    const Dims shape = dims_of(parameter->spec().shape);
    for (const OwnPart& part : parameter->own_parts()) {
      if (part.block->repeated && !copies) continue;
      Piece piece = piece_of_block(parameter->spec(), *part.block, shape);
      piece.begin += part.in_block;
      piece.end = piece.begin + part.run.flat.elements();
      for (const Place& place : found->second)
        for_each_shared_run(place.piece->piece, piece,
                            [&](std::int64_t led, std::int64_t own, std::int64_t count) {
                              runs[place.leader].push_back({.at = place.piece->at + led,
                                                            .count = count,
                                                            .master = part.run.master + own,
                                                            .gradient = part.run.values + own,
                                                            .moment = part.run.moment + own});
                            });
    }
  }
  Way way;
  std::vector<std::int64_t> spans, own_spans;
  for (const std::vector<Run>& of_leader : runs) {
    std::int64_t count = 0;
    for (const Run& run : of_leader) {
      way.own.push_back(run);
      spans.insert(spans.end(), {run.at, run.count});
      count += run.count;
    }
    way.own_counts.push_back(count);
    own_spans.push_back(2 * static_cast<std::int64_t>(of_leader.size()));
  }
  // Sends the leaders the positions in their vectors.
  Communicator& world = layout_.world();
  const std::vector<std::int64_t> ones(leaders.size(), 1);
  std::vector<std::int64_t> led_spans(leaders.size());
  world.all_to_all_async(host_tensor(own_spans), ones, host_tensor(led_spans), ones)->wait();
  std::vector<std::int64_t> led(static_cast<std::size_t>(sum_of(led_spans)));
  world.all_to_all(host_tensor(spans), own_spans, host_tensor(led), led_spans);
  std::size_t at = 0;
  for (const std::int64_t values : led_spans) {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < values; i += 2, at += 2) {
      way.led.push_back({led[at], led[at + 1]});
      count += led[at + 1];
    }
    way.led_counts.push_back(count);
  }
  double others = static_cast<double>(sum_of(way.own_counts) -
                                      way.own_counts[static_cast<std::size_t>(world.rank())]);
  world.all_reduce_sum({&others, 1});
  way.stays = others == 0.0;
  return way;
}

PartMap::PartMap(ParameterStore& store, const Layout& layout) : store_(store), layout_(layout) {
  find_own_pieces();
  const std::vector<std::vector<PartPiece>> leaders = tell_pieces();
  in_ = find_way(leaders, /*copies=*/false);
  out_ = find_way(leaders, /*copies=*/true);
  const std::int64_t covered = sum_of(in_.led_counts);
  SORTIE_CHECK(covered == elements_, "{} of {} elements of a part have a source", covered,
               elements_);
}

Tensor& PartMap::buffer(PartValues values) {
  switch (values) {
    case PartValues::weights:
      store_.await_values();
      return store_.master();
    case PartValues::gradients:
      return store_.gradients();
    case PartValues::moment1:
      return store_.moment1();
    case PartValues::moment2:
      break;
  }
  return store_.moment2();
}

/// Returns the tensor in f32: itself, or a copy.
Tensor PartMap::widened(const Tensor& kept) {
  if (kept.dtype() == DType::f32) return kept;
  Tensor wide = store_.context().empty(DType::f32, {kept.elements()});
  ops::convert(store_.context(), kept, wide);
  return wide;
}

void PartMap::gather(PartValues values, std::span<float> vector) {
  SORTIE_CHECK(static_cast<std::int64_t>(vector.size()) == elements_,
               "a part of {} elements, not {}", elements_, vector.size());
  const Tensor wide = widened(buffer(values));
  const ops::HostAccess<const float> own(store_.context(), wide);
  if (in_.stays) {
    for (const Run& run : in_.own)
      std::copy_n(own.begin() + run.place(values), run.count, vector.begin() + run.at);
    return;
  }
  Scratch sent(sum_of(in_.own_counts)), received(sum_of(in_.led_counts));
  float* to = sent.values.get();
  for (const Run& run : in_.own) to = std::copy_n(own.begin() + run.place(values), run.count, to);
  layout_.world().all_to_all(sent.tensor(), in_.own_counts, received.tensor(), in_.led_counts);
  const float* at = received.values.get();
  for (const Span& span : in_.led) {
    std::copy_n(at, span.count, vector.begin() + span.at);
    at += span.count;
  }
}

void PartMap::scatter(PartValues values, std::span<const float> vector) {
  SORTIE_CHECK(static_cast<std::int64_t>(vector.size()) == elements_,
               "a part of {} elements, not {}", elements_, vector.size());
  Tensor& kept = buffer(values);
  Tensor wide = widened(kept);
  put(values, vector, wide);
  if (kept.dtype() != DType::f32) ops::convert(store_.context(), wide, kept);
}

void PartMap::put(PartValues values, std::span<const float> vector, Tensor& wide) {
  const ops::HostAccess<float> own(store_.context(), wide);
  if (out_.stays) {
    for (const Run& run : out_.own)
      std::copy_n(vector.begin() + run.at, run.count, own.begin() + run.place(values));
    return spread_over_replicas(own.span());
  }
  Scratch sent(sum_of(out_.led_counts)), received(sum_of(out_.own_counts));
  float* to = sent.values.get();
  for (const Span& span : out_.led) to = std::copy_n(vector.begin() + span.at, span.count, to);
  layout_.world().all_to_all(sent.tensor(), out_.led_counts, received.tensor(), out_.own_counts);
  const float* at = received.values.get();
  for (const Run& run : out_.own) {
    std::copy_n(at, run.count, own.begin() + run.place(values));
    at += run.count;
  }
  spread_over_replicas(own.span());
}

/// Broadcasts the values of the first replica if all replicas hold the same ones.
void PartMap::spread_over_replicas(std::span<float> values) {
  if (store_.sharded()) return;
  for (const ParameterStore::Section& section : store_.sections()) {
    Communicator& alike =
        section.group == ReduceGroup::expert ? layout_.expert_replicas() : layout_.replicas();
    if (alike.size() == 1) continue;
    const auto range = values.subspan(static_cast<std::size_t>(section.range.begin),
                                      static_cast<std::size_t>(section.range.elements()));
    alike.broadcast(std::as_writable_bytes(range), 0);
  }
}

}  // namespace sortie::trainer::outer
