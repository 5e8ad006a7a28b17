#include "trainer/autograd/expert_parallel.h"

#include <algorithm>
#include <numeric>

#include "trainer/ops/copy.h"

namespace sortie::trainer {
namespace {

/// Returns the number of rows of each expert.
std::vector<std::int64_t> rows_by_expert(ExecutionContext& context, const ops::ExpertRows& rows) {
  const auto experts = static_cast<std::size_t>(rows.experts);
  std::vector<std::int64_t> counts(experts);
  if (context.device().kind == DeviceKind::meta) {
    const std::int64_t choices = rows.most;
    for (std::size_t e = 0; e < experts; ++e)
      counts[e] =
          choices / rows.experts + (static_cast<std::int64_t>(e) < choices % rows.experts ? 1 : 0);
    return counts;
  }
  const std::vector<std::int64_t> begin = ops::copy_to_host<std::int64_t>(context, rows.begin);
  for (std::size_t e = 0; e < experts; ++e) counts[e] = begin[e + 1] - begin[e];
  return counts;
}

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

/// Returns `rows` rows: those of `from` at [first, ..), zeros elsewhere.
Tensor among_zeros(ExecutionContext& context, const Tensor& from, std::int64_t first,
                   std::int64_t rows) {
  Tensor whole = context.zeros(from.dtype(), {rows, from.size(1)});
  if (from.size(0) == 0) return whole;
  Tensor part = whole.slice(0, first, from.size(0));
  ops::copy(context, from, part);
  return whole;
}

}  // namespace

RowExchange agree_on_rows(ExecutionContext& context, const ops::ExpertRows& rows,
                          const ExpertGroup& group) {
  SORTIE_CHECK(rows.unit == 1 && rows.experts % group.size() == 0, "{} experts on {} ranks",
               rows.experts, group.size());
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::size_t own = static_cast<std::size_t>(rows.experts) / ranks;
  std::vector<std::int64_t> mine = rows_by_expert(context, rows);
  // Indexed by rank, then by this rank's experts. The initial values serve planning, where no
  // counts are exchanged: a rank then receives from each rank the rows that it has for its own
  // experts.
  std::vector<std::int64_t> theirs(mine.size());
  for (std::size_t rank = 0; rank < ranks; ++rank)
    std::copy_n(mine.begin() + static_cast<std::ptrdiff_t>(own) * group.rank(), own,
                theirs.begin() + static_cast<std::ptrdiff_t>(own * rank));
  const Shape all{rows.experts};
  const std::vector<std::int64_t> each(ranks, static_cast<std::int64_t>(own));
  group.communicator.all_to_all(Tensor::wrap(mine.data(), DType::i64, all), each,
                                Tensor::wrap(theirs.data(), DType::i64, all), each);
  RowExchange exchange;
  std::vector<std::int32_t> experts;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::int64_t sends = 0, receives = 0;
    for (std::size_t e = 0; e < own; ++e) {
      const std::int64_t count = theirs[rank * own + e];
      sends += mine[rank * own + e];
      receives += count;
      experts.insert(experts.end(), static_cast<std::size_t>(count), static_cast<std::int32_t>(e));
    }
    exchange.sends.push_back(sends);
    exchange.receives.push_back(receives);
  }
  exchange.sent = sum_of(exchange.sends);
  exchange.received = sum_of(exchange.receives);
  exchange.experts = ops::tensor_from_host<std::int32_t>(context, experts, {exchange.received, 1});
  return exchange;
}

/// State shared by the two ends of an exchange.
struct MovingRows::Journey {
  Journey(ExecutionContext& in, const ExpertGroup& between, std::shared_ptr<const RowExchange> rows)
      : context(in), group(between), exchange(std::move(rows)) {}
  ~Journey() {
    if (handle && group.under_way == handle.get()) group.under_way = nullptr;
  }
  Journey(const Journey&) = delete;
  Journey& operator=(const Journey&) = delete;

  /// Starts to send `rows`, which must not be written until land().
  void start(const Tensor& rows, bool back) {
    const std::int64_t width = rows.size(1);
    const auto elements = [width](std::vector<std::int64_t> counts) {
      for (std::int64_t& count : counts) count *= width;
      return counts;
    };
    Tensor from = rows;
    if (!from.dense()) {
      from = context.empty(rows.dtype(), rows.shape());
      ops::copy(context, rows, from);
    }
    arriving = context.empty(rows.dtype(), {back ? exchange->sent : exchange->received, width});
    handle = group.communicator.all_to_all_async(
        from, elements(back ? exchange->receives : exchange->sends), arriving,
        elements(back ? exchange->sends : exchange->receives), context.record());
    group.under_way = handle.get();
  }
  Tensor land() {
    if (group.under_way == handle.get()) group.under_way = nullptr;
    const Communicator::Handle done = std::move(handle);
    done->wait_on(context);
    return std::move(arriving);
  }

  ExecutionContext& context;
  const ExpertGroup& group;
  const std::shared_ptr<const RowExchange> exchange;
  Tensor arriving;
  Communicator::Handle handle;
};

MovingRows::MovingRows(Graph& graph, const Var& rows, const ExpertGroup& group,
                       std::shared_ptr<const RowExchange> exchange)
    : graph_(graph),
      journey_(std::make_shared<Journey>(graph.context(), group, std::move(exchange))) {
  journey_->start(rows.data, /*back=*/false);
  graph.record([&graph, journey = journey_, rows_grad = rows.grad] {
    if (!journey->handle) return;
    graph.do_postponed(graph.postponed());
    graph.add_grad(*rows_grad, journey->land());
  });
}

Var MovingRows::arrive() {
  Var out = graph_.value(journey_->land());
  graph_.record([journey = journey_, grad = out.grad] {
    const Tensor dy = std::move(grad->tensor);
    if (dy.defined()) journey->start(dy, /*back=*/true);
  });
  return out;
}

Var slice_rows(Graph& graph, const Var& x, std::int64_t first, std::int64_t count) {
  const std::int64_t rows = x.data.size(0);
  if (count == rows) return x;
  Var out = graph.value(x.data.slice(0, first, count));
  graph.record([&graph, first, rows, x_grad = x.grad, grad = out.grad] {
    const Tensor dy = std::move(grad->tensor);
    if (dy.defined()) graph.add_grad(*x_grad, among_zeros(graph.context(), dy, first, rows));
  });
  return out;
}

Var place_rows(Graph& graph, const Var& x, std::int64_t first, std::int64_t rows) {
  const std::int64_t count = x.data.size(0);
  if (count == rows) return x;
  Var out = graph.value(among_zeros(graph.context(), x.data, first, rows));
  graph.record([&graph, first, count, x_grad = x.grad, grad = out.grad] {
    const Tensor dy = std::move(grad->tensor);
    if (dy.defined()) graph.add_grad(*x_grad, dy.slice(0, first, count));
  });
  return out;
}

}  // namespace sortie::trainer
