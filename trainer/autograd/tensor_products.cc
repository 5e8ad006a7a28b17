#include "trainer/autograd/tensor_products.h"

#include <algorithm>
#include <utility>

#include "trainer/autograd/fp8_linear.h"
#include "trainer/autograd/tensor_exchange.h"
#include "trainer/ops/linear.h"

namespace sortie::trainer {
namespace {

/// Minimum rows of a piece of a product: with fewer the exchange is over before the overlap pays.
constexpr std::int64_t kLeastRows = 16;
/// A product on the CPU is split into this many pieces; the exchange makes progress between them.
constexpr std::int64_t kPieces = 4;

bool in_pieces(const Graph& graph, const Var& x, const Parameter& weight) {
  return !multiplies_in_fp8(x, weight) && !weight.low_rank() && !graph.observed();
}

/// A product whose rows are multiplied piece by piece.
struct Product {
  ExecutionContext& context;
  const ops::PackedWeight& weight;
  Tensor bias;

  Product(Graph& graph, Parameter& of, Parameter* with, LinearOptions options)
      : context(graph.context()),
        weight(of.packed()),
        bias(with && options.adds_bias ? with->weight() : Tensor()) {}

  /// Computes rows of y. On the CPU polls `beside`, if any, after each piece.
  void rows(const Tensor& x, Tensor y, CollectiveHandle* beside = nullptr) const {
    const std::int64_t all = x.size(0);
    const bool looks = beside != nullptr && context.device().kind == DeviceKind::cpu;
    const std::int64_t most = looks ? std::max(kLeastRows, (all + kPieces - 1) / kPieces) : all;
    for (std::int64_t first = 0; first < all; first += most) {
      const std::int64_t count = std::min(most, all - first);
      Tensor some = y.slice(0, first, count);
      ops::linear_forward(context, x.slice(0, first, count), weight, bias, some);
      if (looks) (void)beside->poll();
    }
  }
};

/// Without sequence parallelism: every rank has all rows, and the sum is in place.
Var linear_leave_whole(Graph& graph, const Var& x, Parameter& weight, Parameter* bias,
                       LinearOptions options, const TensorGroup& group) {
  ExecutionContext& context = graph.context();
  const Product product(graph, weight, bias, options);
  Tensor y = context.empty(x.data.dtype(), {x.data.size(0), weight.weight().size(0)});
  const std::int64_t all = y.size(0), half = all / 2;
  Tensor first = y.slice(0, 0, half), second = y.slice(0, half, all - half);
  product.rows(x.data.slice(0, 0, half), first);
  const auto sum = begin_sum(context, group, first);
  product.rows(x.data.slice(0, half, all - half), second, sum.get());
  const auto other = begin_sum(context, group, second);
  sum->wait_on(context);
  other->wait_on(context);
  Var out = graph.value(std::move(y));
  record_linear(graph, x, weight, bias, options, out);
  return out;
}

/// With sequence parallelism: each rank gets its own rows of the sum. Each reduce-scatter covers
/// one half of every rank's rows.
Var linear_leave_rows(Graph& graph, const Var& x, Parameter& weight, Parameter* bias,
                      LinearOptions options, const TensorGroup* group) {
  ExecutionContext& context = graph.context();
  const Product product(graph, weight, bias, options);
  const std::int64_t columns = weight.weight().size(0), own = rows_of_rank(x.data, *group);
  Tensor y = context.empty(x.data.dtype(), {own, columns});
  struct Half {
    Tensor parts;
    Communicator::Handle sum;
  } halves[2];
  for (const int number : {0, 1}) {
    const std::int64_t begin = number == 0 ? 0 : own / 2,
                       count = number == 0 ? own / 2 : own - begin;
    Half& half = halves[number];
    half.parts = context.empty(y.dtype(), {count * group->size(), columns});
    for (int rank = 0; rank < group->size(); ++rank)
      product.rows(x.data.slice(0, own * rank + begin, count),
                   half.parts.slice(0, count * rank, count), halves[0].sum.get());
    Tensor rows = y.slice(0, begin, count);
    half.sum =
        group->communicator.reduce_scatter_async(half.parts, rows, ReduceOp::sum, context.record());
  }
  for (const Half& half : halves) half.sum->wait_on(context);
  const Var parts = graph.value({});
  Var out = graph.value(std::move(y));
  record_linear(graph, x, weight, bias, options, parts);
  record_leave(graph, parts, out, group);
  return out;
}

}  // namespace

Var enter_linear(Graph& graph, const Var& x, Parameter& weight, Parameter* bias,
                 LinearOptions options, const TensorGroup* group) {
  const std::int64_t own = x.data.size(0);
  if (!shares_rows(group) || own < kLeastRows || !in_pieces(graph, x, weight))
    return linear(graph, enter(graph, x, group), weight, bias, options);
  ExecutionContext& context = graph.context();
  const Product product(graph, weight, bias, options);
  const std::int64_t all = own * group->size(), before = own * group->rank();
  Arriving rows = begin_gather(context, *group, x.data);
  Tensor y = context.empty(x.data.dtype(), {all, weight.weight().size(0)});
  product.rows(rows.mine, y.slice(0, before, own), rows.handle.get());
  const Var entered = graph.value(rows.land(context));
  record_enter(graph, x, entered, group);
  const std::int64_t behind = before + own;
  for (const auto& [begin, end] : {std::pair{std::int64_t{0}, before}, std::pair{behind, all}})
    if (begin < end)
      product.rows(entered.data.slice(0, begin, end - begin), y.slice(0, begin, end - begin));
  Var out = graph.value(std::move(y));
  record_linear(graph, entered, weight, bias, options, out);
  return out;
}

Var linear_leave(Graph& graph, const Var& x, Parameter& weight, Parameter* bias,
                 LinearOptions options, const TensorGroup* group) {
  if (group == nullptr) return linear(graph, x, weight, bias, options);
  const std::int64_t rows = group->sequence ? rows_of_rank(x.data, *group) : x.data.size(0);
  if (rows < 2 * kLeastRows || !in_pieces(graph, x, weight))
    return leave(graph, linear(graph, x, weight, bias, options), group);
  return group->sequence ? linear_leave_rows(graph, x, weight, bias, options, group)
                         : linear_leave_whole(graph, x, weight, bias, options, *group);
}

}  // namespace sortie::trainer
