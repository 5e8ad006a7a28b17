// Small modules that the model families share: declared parameters plus the op that uses them.
#pragma once

#include <cmath>
#include <string>

#include "trainer/autograd/tensor_products.h"
#include "trainer/nn/parameter_store.h"

namespace sortie::trainer {

/// How tensor parallelism cuts a linear layer.
enum class LinearCut {
  none,
  outputs,  // each rank has some of the outputs, with their bias
  inputs,   // each rank has some of the inputs; rank 0 adds the bias to its partial sum
};

struct LinearModule {
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;
  LinearCut cut = LinearCut::none;
  const TensorGroup* group = nullptr;

  /// Applies the layer to rows as they are between the shared products; includes enter() or leave()
  /// if the layer is cut.
  Var operator()(Graph& graph, const Var& x) const {
    if (cut == LinearCut::outputs) return enter_linear(graph, x, *weight, bias, options(), group);
    if (cut == LinearCut::inputs) return linear_leave(graph, x, *weight, bias, options(), group);
    return product(graph, x);
  }
  /// Applies the layer to the result of enter(), without an exchange. Returns a partial sum if
  /// inputs are cut.
  Var product(Graph& graph, const Var& x) const {
    return linear(graph, x, *weight, bias, options());
  }

 private:
  LinearOptions options() const {
    const bool first = cut != LinearCut::inputs || group == nullptr || group->rank() == 0;
    return {.adds_bias = first, .beside_exchanges = cut != LinearCut::none && group != nullptr};
  }
};

/// Declares "<name>.weight" [out, in] and, with `with_bias`, "<name>.bias" [out].
inline LinearModule add_linear(ParameterStore& store, const std::string& name, std::int64_t out,
                               std::int64_t in, double std_dev, bool with_bias,
                               std::vector<Segment> segments = {},
                               LinearCut cut = LinearCut::none) {
  // If inputs are cut, every rank has the gradients of all rows, and so the bias its whole
  // gradient.
  CutRule of_weight, of_bias;
  if (cut == LinearCut::outputs) of_weight = of_bias = {.axis = 0};
  if (cut == LinearCut::inputs) of_weight = {.axis = 1};
  if (cut == LinearCut::none) of_weight = of_bias = {.partial_gradient = true};
  LinearModule module{.cut = cut, .group = store.tensor_group()};
  module.weight = &store.add({.name = name + ".weight",
                              .shape = {out, in},
                              .init = Init::normal(std_dev),
                              .segments = segments,
                              .cut = of_weight,
                              .fp8 = true,
                              .product_gradient = true});
  if (with_bias)
    module.bias = &store.add(
        {name + ".bias", {out}, Init::zeros(), Use::vector, /*decay=*/false, segments, of_bias});
  return module;
}

/// Wdown . (silu(Wgate . x) * Wup . x)  (Shazeer 2020).
struct SwigluModule {
  LinearModule gate_up, down;
  Var operator()(Graph& graph, const Var& x) const {
    return down(graph, swiglu(graph, gate_up(graph, x)));
  }
  /// Applies the module to the result of enter(), without an exchange. Returns a partial sum.
  Var product(Graph& graph, const Var& x) const {
    return down.product(graph, swiglu(graph, gate_up.product(graph, x)));
  }
};

/// Declares "<name>.gate_up.weight" [2 F, C] and "<name>.down.weight" [C, F].
inline SwigluModule add_swiglu(ParameterStore& store, const std::string& name, std::int64_t hidden,
                               std::int64_t ffn, double std_dev, double out_std) {
  SwigluModule module;
  module.gate_up = add_linear(store, name + ".gate_up", 2 * ffn, hidden, std_dev, false,
                              {{"gate", ffn}, {"up", ffn}}, LinearCut::outputs);
  module.down =
      add_linear(store, name + ".down", hidden, ffn, out_std, false, {}, LinearCut::inputs);
  return module;
}

/// Declares "<name>.weight" [size] and, for LayerNorm, "<name>.bias" [size]. `of_heads`: each rank
/// normalizes only its own heads.
inline NormParameters add_norm(ParameterStore& store, const std::string& name, ops::NormKind kind,
                               std::int64_t size, double eps, bool of_heads = false) {
  NormParameters norm{kind, nullptr, nullptr, static_cast<float>(eps)};
  const CutRule whole{.partial_gradient = true, .partial_always = of_heads};
  norm.weight =
      &store.add({name + ".weight", {size}, Init::ones(), Use::vector, /*decay=*/false, {}, whole});
  if (kind == ops::NormKind::layer)
    norm.bias = &store.add(
        {name + ".bias", {size}, Init::zeros(), Use::vector, /*decay=*/false, {}, whole});
  return norm;
}

/// Returns the standard deviation of the initial weights of layers that write into the residual
/// stream: std / sqrt(2 L) (Radford et al. 2019).
inline double residual_std(double std_dev, std::int64_t layers) {
  return std_dev / std::sqrt(2.0 * static_cast<double>(layers));
}

}  // namespace sortie::trainer
