#include "trainer/nn/parameter.h"

#include <algorithm>
#include <ranges>

#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/fp8_format.h"
#include "trainer/random/random.h"

namespace sortie::trainer {
namespace {
std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// The initial values of elements from `first` of the whole parameter on.
void fill_initial(ExecutionContext& context, const Init& init, std::uint64_t key,
                  std::int64_t first, Tensor& values) {
  if (init.kind == Init::Kind::normal)
    ops::random_normal(context, key, first, init.std_dev, values);
  else
    ops::fill(context, init.kind == Init::Kind::ones ? 1.0 : 0.0, values);
}

}  // namespace

void Parameter::clear_gradient() {
  has_old_gradient_ = false;
  ops::fill(*context_, 0.0, grad_);
}

void Parameter::use_done() {
  if (!trained()) return;
  SORTIE_CHECK(pending_uses_ > 0, "{} has no use pending", name());
  if (pending_uses_ == 1 && has_old_gradient_) clear_gradient();
  if (--pending_uses_ == 0 && on_final_ != nullptr && *on_final_) (*on_final_)(*this);
}

std::vector<OwnPart> Parameter::own_parts() const {
  std::vector<OwnPart> parts;
  std::int64_t at = offset_;
  for (const GlobalBlock& block : blocks_) {
    for (const OwnRun& run : own_runs_) {
      const FlatRange flat{std::max(at, run.flat.begin),
                           std::min(at + block.elements(), run.flat.end)};
      const std::int64_t before = flat.begin - run.flat.begin;
      if (flat.elements() > 0)
        parts.push_back(
            {&block,
             flat.begin - at,
             {flat, run.values + before, run.master + before, run.moment + before, run.bucket}});
    }
    at += block.elements();
  }
  return parts;
}

Parameter& ParameterStore::add(ParameterSpec spec) {
  SORTIE_CHECK(find(spec.name) == nullptr, "parameter {} declared twice", spec.name);
  SORTIE_CHECK(flat_elements_ == 0, "{} declared after finalize", spec.name);
  auto parameter = std::make_unique<Parameter>();
  parameter->spec_ = std::move(spec);
  parameter->on_final_ = &on_final_;
  parameter->on_use_ = &on_use_;
  parameter->on_gradient_ = &on_gradient_;
  SORTIE_CHECK(take_part(*parameter, {}), "{} can not be whole", parameter->name());
  by_name_.emplace(parameter->name(), parameter.get());
  return *parameters_.emplace_back(std::move(parameter));
}

Result<> ParameterStore::take_part(Parameter& parameter, const CutPlaces& places) {
  const ParameterSpec& spec = parameter.spec_;
  if (!places.has(spec.cut.expert)) {
    parameter.blocks_ = {};
    parameter.shape_ = Shape{0, spec.shape[-1]};
    return {};
  }
  const CutPlace place = places.of(spec.cut.group);
  SORTIE_ASSIGN_OR_RETURN(parameter.blocks_,
                          blocks_of(spec.name, spec.shape, spec.segments, spec.cut, place));
  parameter.shape_ = local_shape(spec.shape, spec.segments, spec.cut, place);
  return {};
}

Result<> ParameterStore::cut(const CutPlaces& places) {
  SORTIE_CHECK(flat_elements_ == 0, "cut after finalize");
  for (auto& parameter : parameters_) SORTIE_TRY(take_part(*parameter, places));
  return {};
}

void ParameterStore::share(const ShareRules& rules) {
  SORTIE_CHECK(flat_elements_ == 0, "sharded after finalize");
  for (const ShareRule& rule : {rules.dense, rules.experts})
    SORTIE_CHECK(rule.index >= 0 && rule.index < rule.count, "share {} of {}", rule.index,
                 rule.count);
  rules_ = rules;
}

const ParameterStore::Section& ParameterStore::section_at(std::int64_t element) const {
  const auto found = std::ranges::find_if(sections_, [element](const Section& section) {
    return element >= section.range.begin && element < section.range.end;
  });
  SORTIE_CHECK(found != sections_.end(), "element {} is not trained", element);
  return *found;
}

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
      // Shares of the buckets lie one after another.
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
  // Of what weights are cut into, one part.
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

Tensor ParameterStore::values_of(FlatRange range) {
  SORTIE_CHECK(!gathers(), "no rank has whole values");
  if (range.begin < cut_masters_) return compute_copy_.slice(0, range.begin, range.elements());
  return master_.slice(0, whole_master_at(range.begin), range.elements());
}

Tensor ParameterStore::copies_of(const Parameter& parameter, const OwnRun& run) {
  if (!compute_copy_.defined() || (sharded() && !is_narrow(parameter))) return {};
  return compute_copy_.slice(0, run.values, run.flat.elements());
}

void ParameterStore::initialize(std::uint64_t seed) {
  for (auto& parameter : parameters_) {
    const ParameterSpec& spec = parameter->spec_;
    const std::uint64_t key = random_key(seed, spec.tied_to.empty() ? spec.name : spec.tied_to);
    const std::int64_t columns = spec.shape.dims() == 2 ? spec.shape[1] : 1;
    /// Elements of one run of the whole parameter, from `first` on, that lie at `place`.
    const auto fill = [&](FlatRange place, std::int64_t first) {
      for (const OwnRun& own : parameter->own_runs_) {
        const std::int64_t begin = std::max(place.begin, own.flat.begin);
        const std::int64_t end = std::min(place.end, own.flat.end);
        if (begin >= end) continue;
        Tensor values = master_.slice(0, own.master + begin - own.flat.begin, end - begin);
        fill_initial(*context_, spec.init, key, first + begin - place.begin, values);
      }
    };
    std::int64_t offset = parameter->offset_;
    for (const GlobalBlock& block : parameter->blocks_) {
      // Rows of all columns are one run of the whole parameter's elements.
      const std::int64_t runs = block.columns == columns ? 1 : block.rows;
      const std::int64_t length = block.elements() / std::max<std::int64_t>(runs, 1);
      for (std::int64_t run = 0; run < runs; ++run)
        fill({offset + run * length, offset + (run + 1) * length},
             (block.row + run) * columns + block.column);
      offset += block.elements();
    }
  }
}

Parameter* ParameterStore::find(std::string_view name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

std::int64_t ParameterStore::parameter_elements() const {
  std::int64_t total = 0;
  for (const auto& parameter : parameters_)
    if (parameter->spec().use != Use::state) total += parameter->elements();
  return total;
}

void ParameterStore::zero_gradients() {
  if (replaced_.empty()) return ops::fill(*context_, 0.0, gradients_);
  for (const FlatRange& range : always_zero_) {
    Tensor values = gradients_.slice(0, range.begin, range.elements());
    ops::fill(*context_, 0.0, values);
  }
  gradients_zeroed();
}

void ParameterStore::keep_old_gradients() {
  SORTIE_CHECK(!gathers() && gradients_.defined(), "gradients are not in one buffer");
  for (auto& parameter : parameters_)
    if (parameter->trained() && parameter->spec().product_gradient && parameter->elements() > 0)
      replaced_.push_back(parameter.get());
  std::ranges::sort(replaced_, {}, &Parameter::offset);
  std::int64_t end = 0;
  const auto zero_until = [&](std::int64_t begin) {
    if (begin > end) always_zero_.push_back({end, begin});
  };
  for (Parameter* parameter : replaced_) {
    zero_until(parameter->offset());
    end = parameter->offset() + parameter->elements();
    parameter->context_ = context_;
  }
  zero_until(gradients_.elements());
  gradients_zeroed();
}

void ParameterStore::mark_gradients(bool old) {
  for (Parameter* parameter : replaced_) parameter->has_old_gradient_ = old;
}

void ParameterStore::zero_unwritten_gradients() {
  for (Parameter* parameter : replaced_)
    if (parameter->has_old_gradient_) parameter->clear_gradient();
}

void ParameterStore::forget_uses() {
  for (auto& parameter : parameters_) parameter->pending_uses_ = 0;
}

void ParameterStore::refresh_compute_copy(ExecutionContext& context) {
  if (!compute_copy_.defined()) return;
  const auto convert = [&](FlatRange from, std::int64_t to) {
    if (from.elements() == 0) return;
    Tensor copies = compute_copy_.slice(0, to, from.elements());
    ops::convert(context, master_.slice(0, from.begin, from.elements()), copies);
  };
  if (gathers()) return convert({0, own_masters_}, 0);
  for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket)
    if (buckets_[bucket].begin < cut_masters_)
      convert({own_begins_[bucket], own_begins_[bucket + 1]}, own_share(bucket).begin);
  // What is trained in f32 has no copies then.
  const std::int64_t rest = sharded() ? trained_elements_ : 0;
  convert({whole_master_at(rest), master_.elements()}, rest);
}

void ParameterStore::refresh_fp8_weights() {
  if (!fp8_) return;
  for (auto& parameter : parameters_)
    if (parameter->in_fp8() && parameter->packed_)
      ops::refresh_fp8_weight(*context_, parameter->packed(), parameter->fp8_amaxes().weight);
}

void ParameterStore::weights_changed() {
  for (auto& parameter : parameters_)
    if (parameter->packed_) ops::weight_changed(*context_, *parameter->packed_);
}

}  // namespace sortie::trainer
