#include "trainer/loop/validation.h"

#include <algorithm>

#include "trainer/ops/copy.h"

namespace sortie::trainer {
namespace {

/// sums f64 [2] += loss and number of targets of the samples [first, first + rows).
Result<> score(SampleSource& source, std::int64_t first, std::int64_t rows,
               ExecutionContext& context, const LanguageModel& model, Tensor sums) {
  const std::int64_t length = model.shape().sequence_length;
  const auto width = static_cast<std::size_t>(length);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows) * width), targets(tokens.size());
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::size_t begin = static_cast<std::size_t>(row) * width;
    SORTIE_TRY(source.sample(first + row, std::span(tokens).subspan(begin, width),
                             std::span(targets).subspan(begin, width)));
  }
  ForwardContext forward;
  Graph graph(context, Graph::Mode::inference);
  model.loss(graph, ops::tensor_from_host<std::int32_t>(context, tokens, {rows, length}),
             ops::tensor_from_host<std::int32_t>(context, targets, {rows, length}), 0.0f, forward,
             sums);
  return {};
}

Result<double> mean_loss(SampleSource& source, const ValidationOptions& options,
                         ExecutionContext& context, const LanguageModel& model,
                         const Layout& layout, ProgressMarks& marks) {
  const std::int64_t all = source.samples_per_epoch();
  const std::int64_t samples = options.samples > 0 ? std::min(options.samples, all) : all;
  const std::int64_t passes = (samples + options.rows - 1) / options.rows;
  // One sum per forward pass, so that adding the ranks' shares is exact: all but one are 0.
  const Tensor each = context.zeros(DType::f64, {2 * passes});
  // The ranks of a replica do a forward pass together.
  for (std::int64_t pass = layout.coordinate(Axis::data); pass < passes;
       pass += layout.size(Axis::data)) {
    const std::int64_t first = pass * options.rows;
    SORTIE_TRY(score(source, first, std::min(options.rows, samples - first), context, model,
                     each.slice(0, 2 * pass, 2)));
    marks.tick();
  }
  std::vector<double> sums = ops::copy_to_host<double>(context, each);
  if (!layout.speaks()) std::ranges::fill(sums, 0.0);
  layout.world().all_reduce_sum(sums);
  double nats = 0.0, targets = 0.0;
  for (std::size_t i = 0; i < sums.size(); i += 2) {
    nats += sums[i];
    targets += sums[i + 1];
  }
  return nats / std::max(targets, 1.0);
}

}  // namespace

Result<Validation> validate(const std::vector<ValidationSet>& sets,
                            const ValidationOptions& options, ExecutionContext& context,
                            const LanguageModel& model, const Layout& layout,
                            ProgressMarks& marks) {
  Validation result;
  for (const ValidationSet& set : sets) {
    SORTIE_ASSIGN_OR_RETURN(const double loss,
                            mean_loss(*set.source, options, context, model, layout, marks));
    result.sets.push_back({set.name, loss});
    result.loss += loss / static_cast<double>(sets.size());
  }
  return result;
}

}  // namespace sortie::trainer
