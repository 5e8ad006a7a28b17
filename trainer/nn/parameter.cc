#include "trainer/nn/parameter.h"

#include <algorithm>
#include <cstring>
#include <ranges>

#include "trainer/nn/random.h"
#include "trainer/ops/elementwise.h"

namespace sortie::trainer {
namespace {
constexpr std::int64_t kCacheLine = 16;  // f32 elements: every parameter starts on a cache line

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
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
  return *parameters_.emplace_back(std::move(parameter));
}

void ParameterStore::finalize(ExecutionContext& context, DType compute, std::int64_t alignment,
                              bool with_optimizer) {
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
    parameter->weight_ = home.slice(0, parameter->offset_, parameter->elements()).view(spec.shape);
    if (with_optimizer && parameter->trained())
      parameter->grad_ =
          gradients_.slice(0, parameter->offset_, parameter->elements()).view(spec.shape);
    if (spec.use == Use::matrix || spec.use == Use::f32_matrix)
      parameter->packed_.emplace(parameter->weight_);
  }
}

void ParameterStore::initialize(std::uint64_t seed) {
  for (auto& parameter : parameters_) {
    float* values = master().data() + parameter->offset_;
    const Init init = parameter->spec_.init;
    const std::uint64_t key = random_key(seed, parameter->name());
    const std::int64_t count = parameter->elements();
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) {
      if (init.kind == Init::Kind::normal)
        values[i] =
            static_cast<float>(init.std_dev) * random_normal(key, static_cast<std::uint64_t>(i));
      else
        values[i] = init.kind == Init::Kind::ones ? 1.0f : 0.0f;
    }
  }
}

Parameter* ParameterStore::find(std::string_view name) {
  for (auto& parameter : parameters_)
    if (parameter->name() == name) return parameter.get();
  return nullptr;
}

std::int64_t ParameterStore::parameter_elements() const {
  std::int64_t total = 0;
  for (const auto& parameter : parameters_)
    if (parameter->spec().use != Use::state) total += parameter->elements();
  return total;
}

std::span<bf16> ParameterStore::compute_copy() {
  if (!compute_copy_.defined()) return {};
  return {compute_copy_.data<bf16>(), static_cast<std::size_t>(compute_copy_.elements())};
}

void ParameterStore::zero_gradients() {
  float* values = gradients().data();
  const std::int64_t count = trained_elements_;
  constexpr std::int64_t kPiece = 1 << 18;
#pragma omp parallel for schedule(static)
  for (std::int64_t begin = 0; begin < count; begin += kPiece)
    std::memset(values + begin, 0,
                sizeof(float) * static_cast<std::size_t>(std::min(kPiece, count - begin)));
}

void ParameterStore::refresh_compute_copy(ExecutionContext& context) {
  if (compute_copy_.defined()) ops::convert(context, master_, compute_copy_);
}

void ParameterStore::weights_changed() {
  for (auto& parameter : parameters_)
    if (parameter->packed_) parameter->packed_->changed();
}

}  // namespace sortie::trainer
