// Checks of the routers.
#include "trainer/ops/moe_router.h"

#include "trainer/ops/dispatch.h"

namespace sortie::trainer::ops {
namespace {

void check_f32(const Tensor& x, const Shape& shape, const char* name) {
  SORTIE_CHECK(x.dtype() == DType::f32 && x.dense() && x.shape() == shape,
               "{} is {} {}, expected dense f32 {}", name, dtype_name(x.dtype()),
               x.shape().to_string(), shape.to_string());
}

void check_choices(const Tensor& x, const Shape& shape, const char* name) {
  SORTIE_CHECK(x.dtype() == DType::i32 && x.dense() && x.shape() == shape,
               "{} is {} {}, expected dense i32 {}", name, dtype_name(x.dtype()),
               x.shape().to_string(), shape.to_string());
}

void check_sums(const Tensor& x, std::int64_t elements, const char* name) {
  SORTIE_CHECK(x.dtype() == DType::f64 && x.dense() && x.elements() == elements,
               "{} is {} {}, expected {} dense f64", name, dtype_name(x.dtype()),
               x.shape().to_string(), elements);
}

void check_spec(const RouterSpec& s) {
  SORTIE_CHECK(s.experts > 0 && s.groups > 0 && s.experts % s.groups == 0 && s.kept_groups > 0 &&
                   s.kept_groups <= s.groups && s.top_k > 0 &&
                   s.top_k <= s.experts / s.groups * s.kept_groups,
               "top {} of {} experts in {} groups, {} kept", s.top_k, s.experts, s.groups,
               s.kept_groups);
}

void check_sequences(const Tensor& scores, const Tensor& counts, std::int64_t top_k) {
  check_f32(scores, {scores.size(0), scores.size(-1)}, "scores");
  check_f32(counts, {counts.size(0), scores.size(1)}, "counts");
  SORTIE_CHECK(counts.size(0) > 0 && scores.size(0) % counts.size(0) == 0 && top_k > 0 &&
                   top_k <= scores.size(1),
               "{} rows in {} sequences, top {} of {}", scores.size(0), counts.size(0), top_k,
               scores.size(1));
}

}  // namespace

void route_forward(ExecutionContext& context, const RouterSpec& spec, const Tensor& logits,
                   const Tensor& bias, const Tensor& replay, Tensor& scores, Tensor& experts,
                   Tensor& weights) {
  check_spec(spec);
  const std::int64_t rows = logits.size(0);
  check_f32(logits, {rows, spec.experts}, "logits");
  check_f32(scores, logits.shape(), "scores");
  if (bias.defined()) check_f32(bias, {spec.experts}, "bias");
  if (replay.defined()) check_choices(replay, {rows, spec.top_k}, "replay");
  check_choices(experts, {rows, spec.top_k}, "experts");
  check_f32(weights, experts.shape(), "weights");
  dispatch<&Backend::route_forward>(context, spec, logits, bias, replay, scores, experts, weights);
}

void route_backward(ExecutionContext& context, const RouterSpec& spec, const Tensor& scores,
                    const Tensor& experts, const Tensor& dweights, const Tensor& dscores,
                    Tensor& dlogits) {
  check_spec(spec);
  check_f32(scores, {scores.size(0), spec.experts}, "scores");
  check_choices(experts, {scores.size(0), spec.top_k}, "experts");
  if (dweights.defined()) check_f32(dweights, experts.shape(), "dweights");
  if (dscores.defined()) check_f32(dscores, scores.shape(), "dscores");
  check_f32(dlogits, scores.shape(), "dlogits");
  dispatch<&Backend::route_backward>(context, spec, scores, experts, dweights, dscores, dlogits);
}

void count_top_experts(ExecutionContext& context, const Tensor& scores, std::int64_t top_k,
                       Tensor& counts) {
  check_sequences(scores, counts, top_k);
  dispatch<&Backend::count_top_experts>(context, scores, top_k, counts);
}

void sequence_balance(ExecutionContext& context, const Tensor& scores, const Tensor& counts,
                      std::int64_t top_k, double coefficient, Tensor& loss) {
  check_sequences(scores, counts, top_k);
  check_sums(loss, 1, "loss");
  dispatch<&Backend::sequence_balance>(context, scores, counts, top_k, coefficient, loss);
}

void sequence_balance_backward(ExecutionContext& context, const Tensor& scores,
                               const Tensor& counts, std::int64_t top_k, float scale,
                               Tensor& dscores) {
  check_sequences(scores, counts, top_k);
  check_f32(dscores, scores.shape(), "dscores");
  dispatch<&Backend::sequence_balance_backward>(context, scores, counts, top_k, scale, dscores);
}

void count_choices(ExecutionContext& context, const Tensor& experts, Tensor& counts) {
  check_choices(experts, {experts.size(0), experts.size(-1)}, "experts");
  check_sums(counts, counts.elements(), "counts");
  dispatch<&Backend::count_choices>(context, experts, counts);
}

void count_choices_of_parts(ExecutionContext& context, const Tensor& experts, Tensor& counts) {
  constexpr std::int64_t kMost = 1 << 24;  // f32 represents all integers up to this one
  check_choices(experts, {experts.size(0), experts.size(-1)}, "experts");
  check_f32(counts, {counts.size(0), counts.size(-1)}, "counts");
  SORTIE_CHECK(counts.size(0) > 0 && experts.size(0) % counts.size(0) == 0 &&
                   experts.elements() / counts.size(0) <= kMost,
               "{} choices in {} parts", experts.elements(), counts.size(0));
  dispatch<&Backend::count_choices_of_parts>(context, experts, counts);
}

void limit_choices(ExecutionContext& context, const Tensor& experts, std::int64_t expert_count,
                   const ChoiceLimit& limit, Tensor& kept, Tensor& dropped) {
  check_choices(experts, {experts.size(0), experts.size(-1)}, "experts");
  check_choices(kept, experts.shape(), "kept");
  check_sums(dropped, 1, "dropped");
  const std::int64_t parts = limit.sequences * limit.parts();
  SORTIE_CHECK(expert_count > 0 && limit.capacity > 0 && parts > 0 && experts.size(0) % parts == 0,
               "{} rows of {} sequences in {} parts, {} experts that take {}", experts.size(0),
               limit.sequences, limit.parts(), expert_count, limit.capacity);
  if (limit.before.defined()) check_sums(limit.before, parts * expert_count, "before");
  dispatch<&Backend::limit_choices>(context, experts, expert_count, limit, kept, dropped);
}

void column_sums(ExecutionContext& context, const Tensor& matrix, Tensor& sums) {
  check_f32(matrix, {matrix.size(0), matrix.size(-1)}, "matrix");
  check_sums(sums, matrix.size(1), "sums");
  dispatch<&Backend::column_sums>(context, matrix, sums);
}

void load_balance(ExecutionContext& context, const Tensor& assigned, const Tensor& score_sums,
                  double rows, double coefficient, Tensor& loss) {
  check_sums(assigned, assigned.elements(), "assigned");
  check_sums(score_sums, assigned.elements(), "score sums");
  check_sums(loss, 1, "loss");
  SORTIE_CHECK(rows > 0, "{} rows", rows);
  dispatch<&Backend::load_balance>(context, assigned, score_sums, rows, coefficient, loss);
}

void load_balance_backward(ExecutionContext& context, const Tensor& assigned, double rows,
                           float scale, Tensor& dscores) {
  check_sums(assigned, dscores.size(-1), "assigned");
  check_f32(dscores, {dscores.size(0), dscores.size(-1)}, "dscores");
  dispatch<&Backend::load_balance_backward>(context, assigned, rows, scale, dscores);
}

void update_router_bias(ExecutionContext& context, const Tensor& gate, const Tensor& counts,
                        float rate, Tensor& bias) {
  check_f32(gate, {kGateValues}, "gate");
  check_f32(bias, {bias.elements()}, "bias");
  check_sums(counts, bias.elements(), "counts");
  dispatch<&Backend::update_router_bias>(context, gate, counts, rate, bias);
}

}  // namespace sortie::trainer::ops
