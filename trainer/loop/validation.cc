#include "trainer/loop/validation.h"

#include <fmt/core.h>

#include <algorithm>

#include "trainer/ops/copy.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace {

struct HostBatch {
  std::vector<std::int32_t> tokens, targets;
  Shape shape;
};

/// Reads the samples [first, first + rows).
Result<HostBatch> read_samples(SampleSource& source, std::int64_t first, std::int64_t rows,
                               std::int64_t length) {
  const auto width = static_cast<std::size_t>(length);
  HostBatch batch{std::vector<std::int32_t>(static_cast<std::size_t>(rows) * width),
                  std::vector<std::int32_t>(static_cast<std::size_t>(rows) * width),
                  {rows, length}};
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::size_t begin = static_cast<std::size_t>(row) * width;
    SORTIE_TRY(source.sample(first + row, std::span(batch.tokens).subspan(begin, width),
                             std::span(batch.targets).subspan(begin, width)));
  }
  return batch;
}

/// Number of its samples that are used.
std::int64_t samples_of(const SampleSource& source, std::int64_t wanted) {
  const std::int64_t all = source.samples_per_epoch();
  return wanted > 0 ? std::min(wanted, all) : all;
}

Result<double> mean_loss(SampleSource& source, const ValidationOptions& options,
                         ExecutionContext& context, PipelineStep& passes, const Layout& layout,
                         ProgressMarks& marks, BatchLoss& losses) {
  const std::int64_t samples = samples_of(source, options.samples);
  const std::int64_t count = (samples + options.rows - 1) / options.rows;
  // One sum per forward pass: if one rank has all of a pass, the sum over ranks is exact, because
  // the others add 0.
  const Tensor each = context.zeros(DType::f64, {2 * count});
  // The ranks of a replica do a forward pass together.
  const std::int64_t begin = layout.coordinate(Axis::data), step = layout.size(Axis::data);
  // Replicas that gather weights together or divide experts must perform the same number of passes:
  // one that has none left repeats the last, which is not counted.
  const bool together = passes.gatherer() != nullptr || layout.expert_group() != nullptr;
  const std::int64_t own = together        ? (count + step - 1) / step
                           : begin < count ? (count - begin + step - 1) / step
                                           : 0;
  const auto repeats = [&](std::int64_t index) { return begin + index * step >= count; };
  const auto pass_of = [&](std::int64_t index) {
    return std::min(begin + index * step, count - 1);
  };
  const Tensor unused = context.zeros(DType::f64, {2});
  const auto rows_of = [&](std::int64_t index) {
    return std::min(options.rows, samples - pass_of(index) * options.rows);
  };
  const std::int64_t length = passes.model().shape().sequence_length;
  if (own > 0) {
    for (const PipelineAction& action :
         passes.begin_forward(own, [&](std::int64_t index) { return rows_of(index) * length; })) {
      SORTIE_ASSIGN_OR_RETURN(const HostBatch batch,
                              read_samples(source, pass_of(action.micro_batch) * options.rows,
                                           rows_of(action.micro_batch), length));
      passes.await(action);
      Tensor sums =
          repeats(action.micro_batch) ? unused : each.slice(0, 2 * pass_of(action.micro_batch), 2);
      const auto pass = [&](const Tensor& tokens, const Tensor& targets, Tensor& loss) {
        ForwardContext forward;
        if (source.packed()) forward.packed_targets = targets;
        passes.forward(action, {tokens, targets}, forward, 0.0f, loss);
      };
      if (passes.one_by_one())
        losses.add(context, batch.tokens, batch.targets, batch.shape, pass, sums);
      else
        pass(ops::tensor_from_host<std::int32_t>(context, batch.tokens, batch.shape),
             ops::tensor_from_host<std::int32_t>(context, batch.targets, batch.shape), sums);
      marks.tick();
    }
    passes.finish();
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

std::int64_t validation_measure(const std::vector<ValidationSet>& sets,
                                const config::JobConfig& job) {
  if (sets.empty()) return 0;
  std::string text = fmt::format("{} {} {}\n", job.model.sequence_length,
                                 job.model.document_end_token, job.model.reset_positions);
  for (const ValidationSet& set : sets)
    text += fmt::format("{} {} {}\n", samples_of(*set.source, job.trainer.eval_samples),
                        set.source->fingerprint(), set.name);
  constexpr std::size_t kDigits = 15;  // these always fit a positive 64-bit number
  return std::stoll(sha256_hex(text).substr(0, kDigits), nullptr, 16);
}

Result<Validation> validate(const std::vector<ValidationSet>& sets,
                            const ValidationOptions& options, ExecutionContext& context,
                            PipelineStep& passes, const Layout& layout, ProgressMarks& marks,
                            ValidationLosses* losses) {
  ValidationLosses own(/*graphs=*/false);
  if (losses == nullptr) losses = &own;
  Validation result;
  for (const ValidationSet& set : sets) {
    SORTIE_ASSIGN_OR_RETURN(const double loss, mean_loss(*set.source, options, context, passes,
                                                         layout, marks, losses->of(*set.source)));
    result.sets.push_back({set.name, loss});
    result.loss += loss / static_cast<double>(sets.size());
  }
  return result;
}

}  // namespace sortie::trainer
