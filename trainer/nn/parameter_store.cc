#include "trainer/nn/parameter_store.h"

#include <algorithm>

#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"
#include "trainer/random/random.h"

namespace sortie::trainer {
namespace {

/// Fills `values` with the initial values of the whole parameter's elements from `first` on.
void fill_initial(ExecutionContext& context, const Init& init, std::uint64_t key,
                  std::int64_t first, Tensor& values) {
  if (init.kind == Init::Kind::normal)
    ops::random_normal(context, key, first, init.std_dev, values);
  else
    ops::fill(context, init.kind == Init::Kind::ones ? 1.0 : 0.0, values);
}

}  // namespace

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
    /// Initializes the elements at `place`: one run of the whole parameter's elements, from `first`
    /// on.
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
      // Rows with all columns are one run of the whole parameter's elements.
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
    if (parameter->spec().use != Use::state) total += parameter->elements() - parameter->padding();
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
  // In a sharded store trained f32 parameters have no copies.
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
