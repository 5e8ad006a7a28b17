// The layout of a ParameterStore's flat buffers.
#include <algorithm>
#include <ranges>

#include "trainer/nn/parameter_store.h"
#include "trainer/ops/fp8_format.h"

namespace sortie::trainer {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

/// Every parameter starts on a cache line.
void ParameterStore::lay_out(std::int64_t alignment) {
  sections_.clear();
  const auto place = [this](std::int64_t offset, const auto& chosen) {
    for (const auto& parameter : std::views::reverse(parameters_)) {
      if (!chosen(*parameter)) continue;
      parameter->offset_ = offset;
      offset += round_up(parameter->elements(), kLineElements);
    }
    return offset;
  };
  const bool apart = rules_.expert_ranks > 0;
  const auto unit_of = [&](ReduceGroup group) {
    return group == ReduceGroup::expert ? rules_.expert_ranks * kLineElements
                                        : std::max(alignment, kLineElements);
  };
  if (gathers()) {
    lay_out_units(unit_of(ReduceGroup::dense));
    flat_elements_ =
        place(cut_masters_, [](const Parameter& p) { return p.spec().use == Use::state; });
    return;
  }
  const auto comes_first = [this](const Parameter& p) { return sharded() && is_narrow(p); };
  std::int64_t end = 0;
  for (const bool first : {true, false}) {
    for (const ReduceGroup group : {ReduceGroup::dense, ReduceGroup::expert}) {
      if (group == ReduceGroup::expert && !apart) continue;
      const std::int64_t begin = end;
      const std::int64_t placed = place(begin, [&](const Parameter& p) {
        return p.trained() && comes_first(p) == first && held_by(p) == group;
      });
      end = begin + round_up(placed - begin, unit_of(group));
      if (end > begin) sections_.push_back({{begin, end}, group});
    }
    if (first) cut_masters_ = end;
  }
  trained_elements_ = end;
  flat_elements_ = place(trained_elements_, [](const Parameter& p) { return !p.trained(); });
  if (!sharded()) return;
  own_begins_ = {0};
  for (const auto& [range, group] : sections_) {
    const ShareRule& rule = rule_of(group);
    const std::int64_t most = std::max(rules_.dense.bucket_elements, rule.bucket_elements);
    for (const FlatRange& bucket : cut_into_buckets(range, most, rule.count)) {
      buckets_.push_back(bucket);
      own_begins_.push_back(own_begins_.back() + bucket.elements() / rule.count);
    }
    if (range.end <= cut_masters_) own_masters_ = own_begins_.back();
  }
}

void ParameterStore::find_own_runs() {
  for (auto& parameter : parameters_) {
    const FlatRange all{parameter->offset_, parameter->offset_ + parameter->elements()};
    if (all.elements() == 0) continue;
    if (!keeps_share_of(*parameter)) {
      parameter->own_runs_ = {{all, all.begin, whole_master_at(all.begin), all.begin, 0}};
      continue;
    }
    const BucketSpan span = buckets_of(buckets_, all);
    for (std::size_t bucket = span.first; bucket <= span.last; ++bucket) {
      const FlatRange own = own_share(bucket);
      const FlatRange run{std::max(all.begin, own.begin), std::min(all.end, own.end)};
      if (run.elements() <= 0) continue;
      // The own shares of the buckets are contiguous.
      const std::int64_t at = own_begins_[bucket] + run.begin - own.begin;
      parameter->own_runs_.push_back({run, gathers() ? at : run.begin,
                                      run.begin < cut_masters_ ? at : whole_master_at(run.begin),
                                      at, bucket});
    }
  }
}

void ParameterStore::keep_amaxes() {
  const auto layers = static_cast<std::int64_t>(
      std::ranges::count_if(parameters_, [](const auto& p) { return p->spec().fp8; }));
  if (layers == 0) return;
  fp8_history_ = context_->zeros(DType::f32, {3 * layers, ops::kFp8History});
  fp8_current_ = context_->zeros(DType::f32, {3 * layers});
  std::int64_t row = 0;
  for (const auto& parameter : parameters_) {
    if (!parameter->spec().fp8) continue;
    Parameter::Fp8Amaxes& amaxes = parameter->fp8_amaxes_;
    for (ops::Fp8Amax* amax : {&amaxes.x, &amaxes.weight, &amaxes.gradient}) {
      *amax = {fp8_history_.slice(0, row, 1).view({ops::kFp8History}),
               fp8_current_.slice(0, row, 1)};
      ++row;
    }
  }
}

void ParameterStore::finalize(ExecutionContext& context, DType compute, std::int64_t alignment,
                              bool with_optimizer) {
  context_ = &context;
  compute_ = compute;
  lay_out(alignment);
  find_own_runs();
  master_ = context.zeros(DType::f32, {whole_master_at(flat_elements_)});
  // The number of parts that weights are cut into.
  const std::int64_t parts = gathers() ? rules_.dense.count : 1;
  if (with_optimizer) {
    const std::int64_t own = gathers()   ? trained_elements_ / parts
                             : sharded() ? own_begins_.back()
                                         : trained_elements_;
    gradients_ = context.zeros(DType::f32, {trained_elements_ / parts});
    moment1_ = context.zeros(moment_dtype_, {own});
    SORTIE_CHECK(!own_momentum_ || !sharded(), "shares of a momentum that differs");
    SORTIE_CHECK(!own_momentum_ || moment_dtype_ == DType::f32, "a momentum in bf16");
    if (!own_momentum_) moment2_ = context.zeros(moment_dtype_, {own});
  }
  if (compute == DType::bf16)
    compute_copy_ = context.zeros(DType::bf16, {gathers() ? own_masters_ : flat_elements_});
  if (gathers()) make_rooms(with_optimizer);
  if (fp8_ && fp8_delayed_ && with_optimizer) keep_amaxes();
  for (auto& parameter : parameters_) {
    const ParameterSpec& spec = parameter->spec_;
    const std::int64_t elements = parameter->elements();
    if (gathers() && spec.use != Use::state) {
      place_in_room(*parameter);
    } else {
      const Tensor home = is_narrow(*parameter)
                              ? compute_copy_.slice(0, parameter->offset_, elements)
                              : master_.slice(0, whole_master_at(parameter->offset_), elements);
      parameter->weight_ = home.view(parameter->shape_);
      if (with_optimizer && parameter->trained())
        parameter->grad_ =
            gradients_.slice(0, parameter->offset_, elements).view(parameter->shape_);
    }
    parameter->in_fp8_ = fp8_ && spec.fp8 && is_narrow(*parameter) &&
                         parameter->shape_[0] % ops::kFp8Unit == 0 &&
                         parameter->shape_[1] % ops::kFp8Unit == 0;
    if (spec.use == Use::matrix || spec.use == Use::f32_matrix)
      parameter->packed_.emplace(parameter->weight_);
  }
}

}  // namespace sortie::trainer
