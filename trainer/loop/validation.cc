#include "trainer/loop/validation.h"

#include <algorithm>

namespace sortie::trainer {
namespace {

/// Loss and number of targets of the samples [first, first + rows).
Result<ops::CrossEntropyResult> score(SampleSource& source, std::int64_t first, std::int64_t rows,
                                      ExecutionContext& context, const LanguageModel& model) {
  const std::int64_t length = model.shape().sequence_length;
  const auto width = static_cast<std::size_t>(length);
  Tensor tokens = context.empty(DType::i32, {rows, length});
  Tensor targets = context.empty(DType::i32, {rows, length});
  for (std::int64_t row = 0; row < rows; ++row)
    SORTIE_TRY(source.sample(first + row, {tokens.data<std::int32_t>() + row * length, width},
                             {targets.data<std::int32_t>() + row * length, width}));
  ForwardContext forward;
  Graph graph(context, Graph::Mode::inference);
  return model.loss(graph, tokens, targets, 0.0f, forward);
}

Result<double> mean_loss(SampleSource& source, const ValidationOptions& options,
                         ExecutionContext& context, const LanguageModel& model,
                         Communicator& communicator) {
  const std::int64_t all = source.samples_per_epoch();
  const std::int64_t samples = options.samples > 0 ? std::min(options.samples, all) : all;
  const std::int64_t passes = (samples + options.rows - 1) / options.rows;
  // One sum per forward pass, so that adding the ranks' shares is exact: all but one are 0.
  std::vector<double> sums(static_cast<std::size_t>(2 * passes), 0.0);
  for (std::int64_t pass = communicator.rank(); pass < passes; pass += communicator.size()) {
    const std::int64_t first = pass * options.rows;
    SORTIE_ASSIGN_OR_RETURN(
        const auto loss,
        score(source, first, std::min(options.rows, samples - first), context, model));
    sums[static_cast<std::size_t>(2 * pass)] = loss.loss_sum;
    sums[static_cast<std::size_t>(2 * pass + 1)] = static_cast<double>(loss.count);
  }
  communicator.all_reduce_sum(sums);
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
                            const LanguageModel& model, Communicator& communicator) {
  Validation result;
  for (const ValidationSet& set : sets) {
    SORTIE_ASSIGN_OR_RETURN(const double loss,
                            mean_loss(*set.source, options, context, model, communicator));
    result.sets.push_back({set.name, loss});
    result.loss += loss / static_cast<double>(sets.size());
  }
  return result;
}

}  // namespace sortie::trainer
