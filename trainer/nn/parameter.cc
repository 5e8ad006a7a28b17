#include "trainer/nn/parameter.h"

#include <algorithm>
#include <ranges>

#include "trainer/ops/copy.h"
#include "trainer/ops/elementwise.h"
#include "trainer/random/random.h"

namespace sortie::trainer {
namespace {
constexpr std::int64_t kCacheLine = 16;  // f32 elements: every parameter starts on a cache line

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

void Parameter::use_done() {
  if (!trained()) return;
  SORTIE_CHECK(pending_uses_ > 0, "{} has no use pending", name());
  if (--pending_uses_ == 0 && on_final_ != nullptr && *on_final_) (*on_final_)(*this);
}

Parameter& ParameterStore::add(ParameterSpec spec) {
  SORTIE_CHECK(find(spec.name) == nullptr, "parameter {} declared twice", spec.name);
  SORTIE_CHECK(flat_elements_ == 0, "{} declared after finalize", spec.name);
  auto parameter = std::make_unique<Parameter>();
  parameter->spec_ = std::move(spec);
  parameter->on_final_ = &on_final_;
  SORTIE_CHECK(take_part(*parameter, {}), "{} can not be whole", parameter->name());
  by_name_.emplace(parameter->name(), parameter.get());
  return *parameters_.emplace_back(std::move(parameter));
}

Result<> ParameterStore::take_part(Parameter& parameter, CutPlace place) {
  const ParameterSpec& spec = parameter.spec_;
  SORTIE_ASSIGN_OR_RETURN(parameter.blocks_,
                          blocks_of(spec.name, spec.shape, spec.segments, spec.cut, place));
  parameter.shape_ = local_shape(spec.shape, spec.segments, spec.cut, place);
  return {};
}

Result<> ParameterStore::cut(const CutPlaces& places) {
  SORTIE_CHECK(flat_elements_ == 0, "cut after finalize");
  for (auto& parameter : parameters_)
    SORTIE_TRY(take_part(*parameter, places.of(parameter->spec_.cut.group)));
  return {};
}

void ParameterStore::finalize(ExecutionContext& context, DType compute, std::int64_t alignment,
                              bool with_optimizer) {
  context_ = &context;
  compute_ = compute;
  const auto lay_out = [this](bool trained, std::int64_t offset) {
    for (const auto& parameter : std::views::reverse(parameters_)) {
      if (parameter->trained() != trained) continue;
      parameter->offset_ = offset;
      offset += round_up(parameter->elements(), kCacheLine);
    }
    return offset;
  };
  trained_elements_ = round_up(lay_out(true, 0), std::max(alignment, kCacheLine));
  flat_elements_ = lay_out(false, trained_elements_);
  master_ = context.zeros(DType::f32, {flat_elements_});
  if (with_optimizer) {
    gradients_ = context.zeros(DType::f32, {trained_elements_});
    moment1_ = context.zeros(DType::f32, {trained_elements_});
    moment2_ = context.zeros(DType::f32, {trained_elements_});
  }
  if (compute == DType::bf16) compute_copy_ = context.zeros(DType::bf16, {flat_elements_});
  for (auto& parameter : parameters_) {
    const ParameterSpec& spec = parameter->spec_;
    const bool reduced = spec.use == Use::matrix && compute == DType::bf16;
    Tensor& home = reduced ? compute_copy_ : master_;
    parameter->weight_ =
        home.slice(0, parameter->offset_, parameter->elements()).view(parameter->shape_);
    if (with_optimizer && parameter->trained())
      parameter->grad_ =
          gradients_.slice(0, parameter->offset_, parameter->elements()).view(parameter->shape_);
    if (spec.use == Use::matrix || spec.use == Use::f32_matrix)
      parameter->packed_.emplace(parameter->weight_);
  }
}

void ParameterStore::initialize(std::uint64_t seed) {
  for (auto& parameter : parameters_) {
    const ParameterSpec& spec = parameter->spec_;
    const std::uint64_t key = random_key(seed, spec.tied_to.empty() ? spec.name : spec.tied_to);
    const std::int64_t columns = spec.shape.dims() == 2 ? spec.shape[1] : 1;
    std::int64_t offset = parameter->offset_;
    for (const GlobalBlock& block : parameter->blocks_) {
      // Rows of all columns are one run of the whole parameter's elements.
      const std::int64_t runs = block.columns == columns ? 1 : block.rows;
      const std::int64_t length = block.elements() / std::max<std::int64_t>(runs, 1);
      for (std::int64_t run = 0; run < runs; ++run) {
        Tensor values = master_.slice(0, offset + run * length, length);
        fill_initial(*context_, spec.init, key, (block.row + run) * columns + block.column, values);
      }
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
  ops::fill(*context_, 0.0, gradients_);
}

void ParameterStore::refresh_compute_copy(ExecutionContext& context) {
  if (compute_copy_.defined()) ops::convert(context, master_, compute_copy_);
}

void ParameterStore::weights_changed() {
  for (auto& parameter : parameters_)
    if (parameter->packed_) ops::weight_changed(*context_, *parameter->packed_);
}

}  // namespace sortie::trainer
