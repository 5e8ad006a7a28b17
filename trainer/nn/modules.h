// Small modules that families share: declared parameters plus the op that uses them.
#pragma once

#include <cmath>
#include <string>

#include "trainer/autograd/functions.h"

namespace sortie::trainer {

struct LinearModule {
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;
  Var operator()(Graph& graph, const Var& x) const { return linear(graph, x, *weight, bias); }
};

/// How tensor parallelism cuts a linear layer.
enum class LinearCut {
  none,
  outputs,  // a rank has some of the outputs, with their bias
  inputs,   // a rank has some of the inputs; the sum over ranks gets the bias
};

/// Declares "<name>.weight" [out, in] and, if asked, "<name>.bias" [out].
inline LinearModule add_linear(ParameterStore& store, const std::string& name, std::int64_t out,
                               std::int64_t in, double std_dev, bool with_bias,
                               std::vector<Segment> segments = {},
                               LinearCut cut = LinearCut::none) {
  CutRule of_weight, of_bias{.partial_gradient = true};
  if (cut == LinearCut::outputs) of_weight = of_bias = {.axis = 0};
  if (cut == LinearCut::inputs) of_weight = {.axis = 1};
  if (cut == LinearCut::none) of_weight = of_bias;
  LinearModule module;
  module.weight = &store.add({name + ".weight",
                              {out, in},
                              Init::normal(std_dev),
                              Use::matrix,
                              /*decay=*/true,
                              segments,
                              of_weight});
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

/// Declares "<name>.weight" [size] and, for LayerNorm, "<name>.bias" [size].
inline NormParameters add_norm(ParameterStore& store, const std::string& name, ops::NormKind kind,
                               std::int64_t size, double eps) {
  NormParameters norm{kind, nullptr, nullptr, static_cast<float>(eps)};
  const CutRule whole{.partial_gradient = true};
  norm.weight =
      &store.add({name + ".weight", {size}, Init::ones(), Use::vector, /*decay=*/false, {}, whole});
  if (kind == ops::NormKind::layer)
    norm.bias = &store.add(
        {name + ".bias", {size}, Init::zeros(), Use::vector, /*decay=*/false, {}, whole});
  return norm;
}

/// Standard deviation of layers that write into the residual stream: std / sqrt(2 L) (Radford et
/// al. 2019).
inline double residual_std(double std_dev, std::int64_t layers) {
  return std_dev / std::sqrt(2.0 * static_cast<double>(layers));
}

}  // namespace sortie::trainer
