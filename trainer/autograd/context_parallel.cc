#include "trainer/autograd/context_parallel.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/meta/planned_gpu.h"
#include "trainer/parallel/transfers.h"

namespace sortie::trainer {
namespace {

/// Keys and values of one chunk, or their gradients, in one message: keys [B, S, KV, D], then
/// values [B, S, KV, Dv].
struct KeyMessage {
  Shape keys, values;
  std::int64_t elements() const { return keys.elements() + values.elements(); }
  Tensor keys_of(const Tensor& message) const {
    return message.slice(0, 0, keys.elements()).view(keys);
  }
  Tensor values_of(const Tensor& message) const {
    return message.slice(0, keys.elements(), values.elements()).view(values);
  }
};

/// Constants of all steps of one attention.
struct RingShape {
  RingShape(const ContextGroup& ring_group, const Tensor& k, const Tensor& v,
            const ops::AttentionMask& ring_mask)
      : group(ring_group),
        mask(ring_mask),
        on_gpu(ops::is_gpu(k.device())),
        chunk_tokens(k.size(1) / 2),
        message{{k.size(0), chunk_tokens, k.size(2), k.size(3)},
                {v.size(0), chunk_tokens, v.size(2), v.size(3)}},
        reach(chunk_reach(mask.window, chunk_tokens, group.chunks())),
        routes(chunk_routes(group.size(), reach)) {
    SORTIE_CHECK(k.size(1) % 2 == 0, "{} tokens in two chunks", k.size(1));
    for (const ChunkRoute& route : routes) steps = std::max(steps, route.hops);
  }
  /// The tokens of a chunk in a tensor [B, own tokens, ...].
  Tensor half_of(const Tensor& x, int half) const {
    return x.slice(1, half * chunk_tokens, chunk_tokens);
  }
  /// Calls body(first, count, mask) for runs of this rank's queries that see the chunk of keys. On
  /// the CPU the runs are short, so that messages make progress between them.
  template <class Body>
  void for_each_query_run(int key_chunk, const Body& body) const {
    constexpr std::int64_t kShort = 1024;
    const std::int64_t run = on_gpu ? chunk_tokens : kShort;
    for (int half = 0; half < 2; ++half) {
      const int chunk = group.chunk(half);
      if (!sees(chunk, key_chunk, reach)) continue;
      for (std::int64_t begin = 0; begin < chunk_tokens; begin += run) {
        const std::int64_t count = std::min(run, chunk_tokens - begin);
        const std::int64_t first = half * chunk_tokens + begin;
        ops::AttentionMask part = mask;
        part.part = {.first_query = chunk * chunk_tokens + begin,
                     .first_key = key_chunk * chunk_tokens,
                     .tokens = group.chunks() * chunk_tokens};
        if (mask.document_start.defined())
          part.document_start = mask.document_start.slice(1, first, count);
        body(first, count, part);
      }
    }
  }

  const ContextGroup& group;
  const ops::AttentionMask& mask;
  const bool on_gpu;
  const std::int64_t chunk_tokens;
  const KeyMessage message;
  const ChunkReach reach;
  const std::vector<ChunkRoute> routes;
  int steps = 0;  // of the longest route
};

/// Passes keys and values from rank to rank. In step s the rank at hop s of a route receives the
/// route's chunk. All ranks post the messages of a step at the same point, in the order of the
/// routes, so that those of every pair of ranks match.
class KeyTravel {
 public:
  struct Visitor {
    std::size_t route;
    Tensor message;
  };

  KeyTravel(ExecutionContext& context, const RingShape& shape, const Tensor& k, const Tensor& v)
      : context_(context), shape_(shape) {
    std::optional<Tensor> packed[2];  // by half: a chunk may be sent in both directions
    for (std::size_t i = 0; i < shape.routes.size(); ++i) {
      const ChunkRoute& route = shape.routes[i];
      if (route.owner != shape.group.rank()) continue;
      const int half = shape.group.half(route.chunk);
      if (!packed[half]) {
        packed[half] = context.empty(k.dtype(), {shape.message.elements()});
        Tensor keys = shape.message.keys_of(*packed[half]);
        Tensor values = shape.message.values_of(*packed[half]);
        ops::copy(context, shape.half_of(k, half), keys);
        ops::copy(context, shape.half_of(v, half), values);
      }
      here_.push_back({i, *packed[half]});
    }
    dtype_ = k.dtype();
    post();
  }

  /// Returns the chunks of the next step and starts to forward them.
  const std::vector<Visitor>& next() {
    here_.clear();
    for (const auto& [route, number] : coming_)
      here_.push_back({route, travels_.back().take(number)});
    coming_.clear();
    ++step_;
    post();
    return here_;
  }
  /// Waits until all messages have been sent.
  void finish() {
    here_.clear();
    for (Transfers& step : travels_) step.finish();
  }

 private:
  /// Posts the messages of the next step.
  void post() {
    if (step_ >= shape_.steps) return;
    const ContextGroup& group = shape_.group;
    Transfers& step = travels_.emplace_back(context_, group.communicator, dtype_);
    for (std::size_t i = 0; i < shape_.routes.size(); ++i) {
      const ChunkRoute& route = shape_.routes[i];
      if (route.hops <= step_) continue;
      const int from = group.at(route, step_), to = group.at(route, step_ + 1);
      if (from == group.rank()) step.send(message_of(i), to);
      if (to == group.rank())
        coming_.emplace_back(i, step.receive({shape_.message.elements()}, from));
    }
    step.begin();
    for (Transfers& before : travels_) before.poll();
  }
  Tensor message_of(std::size_t route) const {
    for (const Visitor& visitor : here_)
      if (visitor.route == route) return visitor.message;
    SORTIE_CHECK(false, "a chunk to be forwarded is missing");
  }

  ExecutionContext& context_;
  const RingShape& shape_;
  DType dtype_ = DType::f32;
  int step_ = 0;
  std::vector<Visitor> here_;
  std::vector<std::pair<std::size_t, std::size_t>> coming_;  // route, number in travels_.back()
  std::vector<Transfers> travels_;                           // by step
};

/// Passes the gradients (f32) of visiting chunks along the routes of these chunks. Each rank adds
/// its part; the last rank of a route sends the sum to the owner of the chunk.
class GradientTravel {
 public:
  GradientTravel(ExecutionContext& context, const RingShape& shape)
      : context_(context), shape_(shape) {
    for (Tensor& sum : own_) sum = context.zeros(DType::f32, {shape.message.elements()});
  }
  /// The gradient sum of one of this rank's own chunks.
  Tensor& own(int half) { return own_[half]; }

  /// Call after each step. `parts` holds this rank's part for every visiting chunk, by route.
  void pass_on(int step, std::map<std::size_t, Tensor> parts) {
    for (const auto& [route, number] : coming_) {
      Tensor& part = parts.at(route);
      ops::add(context_, travels_.back().take(number), part, part);
    }
    coming_.clear();
    const ContextGroup& group = shape_.group;
    Transfers& sums = travels_.emplace_back(context_, group.communicator, DType::f32);
    for (std::size_t i = 0; i < shape_.routes.size(); ++i) {
      const ChunkRoute& route = shape_.routes[i];
      if (route.hops < step) continue;
      const bool goes_home = route.hops == step;
      const int from = group.at(route, step);
      const int to = goes_home ? route.owner : group.at(route, step + 1);
      if (from == group.rank()) sums.send(std::move(parts.at(i)), to);
      if (to != group.rank()) continue;
      const std::size_t number = sums.receive({shape_.message.elements()}, from);
      if (goes_home)
        home_.emplace(i, std::pair(travels_.size() - 1, number));
      else
        coming_.emplace_back(i, number);
    }
    sums.begin();
    for (Transfers& before : travels_) before.poll();
  }
  /// Adds the sums that this rank has received as owner, in the order of the routes. Waits until
  /// all messages have been sent.
  void finish() {
    for (const auto& [route, at] : home_) {
      Tensor& sum = own_[shape_.group.half(shape_.routes[route].chunk)];
      ops::add(context_, sum, travels_[at.first].take(at.second), sum);
    }
    for (Transfers& step : travels_) step.finish();
  }

 private:
  ExecutionContext& context_;
  const RingShape& shape_;
  Tensor own_[2];
  std::vector<Transfers> travels_;  // by step
  /// Route, number in travels_.back().
  std::vector<std::pair<std::size_t, std::size_t>> coming_;
  std::map<std::size_t, std::pair<std::size_t, std::size_t>> home_;  // by route: step, number
};

/// Copies f32 values to a view of any type.
void store(ExecutionContext& context, const Tensor& values, Tensor to) {
  if (to.dtype() == DType::f32) return ops::copy(context, values, to);
  Tensor converted = context.empty(to.dtype(), to.shape());
  ops::convert(context, values, converted);
  ops::copy(context, converted, to);
}

}  // namespace

Tensor own_tokens(ExecutionContext& context, const Tensor& whole, const ContextGroup* group) {
  if (group == nullptr) return whole;
  SORTIE_CHECK(whole.size(1) % group->chunks() == 0, "{} tokens in {} chunks", whole.size(1),
               group->chunks());
  const std::int64_t each = whole.size(1) / group->chunks();
  Tensor own = context.empty(whole.dtype(), {whole.size(0), 2 * each});
  for (int half = 0; half < 2; ++half) {
    Tensor to = own.slice(1, half * each, each);
    ops::copy(context, whole.slice(1, group->chunk(half) * each, each), to);
  }
  return own;
}

void attend(ExecutionContext& context, const ContextGroup* group, const Tensor& q, const Tensor& k,
            const Tensor& v, const ops::AttentionMask& mask, Tensor& out, Tensor& lse) {
  if (group == nullptr) return ops::attention_forward(context, q, k, v, mask, out, lse);
  const RingShape shape(*group, k, v, mask);
  Tensor sums = out.dtype() == DType::f32 ? out : context.empty(DType::f32, out.shape());
  ops::fill(context, 0.0, sums);
  ops::fill(context, -std::numeric_limits<double>::infinity(), lse);
  const auto add_keys = [&](int key_chunk, const Tensor& keys, const Tensor& values) {
    shape.for_each_query_run(
        key_chunk, [&](std::int64_t first, std::int64_t count, const ops::AttentionMask& part) {
          Tensor to = sums.slice(1, first, count), to_lse = lse.slice(2, first, count);
          ops::attention_forward(context, q.slice(1, first, count), keys, values, part, to, to_lse);
        });
  };
  KeyTravel travel(context, shape, k, v);
  for (int half = 0; half < 2; ++half)
    add_keys(group->chunk(half), shape.half_of(k, half), shape.half_of(v, half));
  for (int step = 1; step <= shape.steps; ++step)
    for (const auto& [route, message] : travel.next())
      add_keys(shape.routes[route].chunk, shape.message.keys_of(message),
               shape.message.values_of(message));
  travel.finish();
  if (out.dtype() != DType::f32) ops::convert(context, sums, out);
}

void attend_backward(ExecutionContext& context, const ContextGroup* group, const Tensor& q,
                     const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                     const Tensor& dout, const ops::AttentionMask& mask, Tensor& dq, Tensor& dk,
                     Tensor& dv) {
  if (group == nullptr)
    return ops::attention_backward(context, q, k, v, out, lse, dout, mask, dq, dk, dv);
  const RingShape shape(*group, k, v, mask);
  const Tensor dqueries = context.zeros(DType::f32, q.shape());
  const auto add_gradients = [&](int key_chunk, const Tensor& keys, const Tensor& values,
                                 const Tensor& sums) {
    Tensor dkeys = shape.message.keys_of(sums), dvalues = shape.message.values_of(sums);
    shape.for_each_query_run(key_chunk, [&](std::int64_t first, std::int64_t count,
                                            const ops::AttentionMask& part) {
      const auto run_of = [&](const Tensor& x) { return x.slice(1, first, count); };
      Tensor to = run_of(dqueries);
      ops::attention_backward(context, run_of(q), keys, values, run_of(out),
                              lse.slice(2, first, count), run_of(dout), part, to, dkeys, dvalues);
    });
  };
  KeyTravel travel(context, shape, k, v);
  GradientTravel gradients(context, shape);
  for (int half = 0; half < 2; ++half)
    add_gradients(group->chunk(half), shape.half_of(k, half), shape.half_of(v, half),
                  gradients.own(half));
  for (int step = 1; step <= shape.steps; ++step) {
    std::map<std::size_t, Tensor> parts;
    for (const auto& [route, message] : travel.next()) {
      Tensor& sums = parts[route] = context.zeros(DType::f32, {shape.message.elements()});
      add_gradients(shape.routes[route].chunk, shape.message.keys_of(message),
                    shape.message.values_of(message), sums);
    }
    gradients.pass_on(step, std::move(parts));
  }
  travel.finish();
  gradients.finish();
  store(context, dqueries, dq);
  for (int half = 0; half < 2; ++half) {
    store(context, shape.message.keys_of(gradients.own(half)), shape.half_of(dk, half));
    store(context, shape.message.values_of(gradients.own(half)), shape.half_of(dv, half));
  }
}

}  // namespace sortie::trainer
