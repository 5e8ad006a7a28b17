#include "trainer/nn/lora.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "common/config/training_groups.h"

namespace sortie::trainer {
namespace {

constexpr std::string_view kWeight = ".weight";

bool can_be_updated(const Parameter& parameter) {
  const std::string& name = parameter.name();
  return parameter.spec().use == Use::matrix && parameter.spec().shape.dims() == 2 &&
         name.starts_with("layers.") && name.ends_with(kWeight) && !name.contains(".experts.");
}

std::string module_of(const Parameter& parameter) {
  return parameter.name().substr(0, parameter.name().size() - kWeight.size());
}

Result<> no_match(const char* key, const std::string& pattern, const std::string& names) {
  return fail(ErrorCode::config,
              fmt::format("{}: \"{}\" matches nothing; names are like {}", key, pattern, names));
}

}  // namespace

bool is_lora_name(const std::string& name) {
  return name.ends_with(kLoraDown) || name.ends_with(kLoraUp);
}

Result<> add_lora(const config::LoraConfig& config, ParameterStore& store, Patterns patterns) {
  if (config.rank == 0) return {};
  std::vector<Parameter*> chosen;
  std::string example;
  for (const auto& parameter : store.parameters()) {
    if (!can_be_updated(*parameter)) continue;
    if (example.empty()) example = module_of(*parameter);
    if (config::any_matches(config.modules, module_of(*parameter)))
      chosen.push_back(parameter.get());
  }
  for (const std::string& pattern : config.modules)
    if (patterns == Patterns::must_match &&
        std::ranges::none_of(chosen, [&](const Parameter* parameter) {
          return config::name_matches(pattern, module_of(*parameter));
        }))
      return no_match("lora.modules", pattern, example);
  for (Parameter* weight : chosen) {
    const std::int64_t out = weight->spec().shape[0], in = weight->spec().shape[1];
    // The factor that is not cut is multiplied with a part of the other one: its gradient is
    // partial.
    const CutRule whole{.partial_gradient = true,
                        .partial_always = weight->spec().cut.axis.has_value()};
    LowRank low;
    low.scale = static_cast<float>(config.alpha / static_cast<double>(config.rank));
    low.down = &store.add({module_of(*weight) + kLoraDown,
                           {config.rank, in},
                           Init::normal(1.0 / std::sqrt(3.0 * static_cast<double>(in))),
                           Use::matrix,
                           /*decay=*/true,
                           {},
                           weight->spec().cut.axis == 1 ? CutRule{.axis = 1} : whole});
    low.up = &store.add({module_of(*weight) + kLoraUp,
                         {out, config.rank},
                         Init::zeros(),
                         Use::matrix,
                         /*decay=*/true,
                         weight->spec().segments,
                         weight->spec().cut.axis == 0 ? CutRule{.axis = 0} : whole});
    weight->set_low_rank(low);
  }
  return {};
}

Result<> freeze_parameters(const config::JobConfig& job, ParameterStore& store, Patterns patterns) {
  if (store.parameters().empty()) return {};
  for (const std::string& pattern : job.optimizer.freeze)
    if (patterns == Patterns::must_match &&
        std::ranges::none_of(store.parameters(), [&](const auto& parameter) {
          return config::name_matches(pattern, parameter->name());
        }))
      return no_match("optimizer.freeze", pattern, store.parameters().front()->name());
  bool any = false;
  for (const auto& parameter : store.parameters()) {
    const std::string& name = parameter->spec().whole_name();
    if (config::any_matches(job.optimizer.freeze, name) ||
        (job.lora.rank > 0 && !is_lora_name(name)))
      parameter->freeze();
    any = any || parameter->trained();
  }
  if (!any && patterns == Patterns::must_match && job.lora.rank > 0 && job.lora.modules.empty())
    return fail(ErrorCode::config,
                "lora.modules: it is empty, so there are no updates, and lora.rank > 0 trains "
                "nothing else; name some matrices, or leave the key out");
  if (!any && patterns == Patterns::must_match)
    return fail(ErrorCode::config,
                "optimizer.freeze: every parameter is frozen; leave some to be trained");
  return {};
}

void merge_lora(ParameterStore& store) {
  for (const auto& parameter : store.parameters()) {
    if (!parameter->low_rank()) continue;
    const LowRank& low = *parameter->low_rank();
    const auto values_of = [&store](const Parameter& of) {
      return store.master().slice(0, of.offset(), of.elements()).view(of.spec().shape);
    };
    Tensor weight = values_of(*parameter), up = values_of(*low.up);
    ops::merge_low_rank(store.context(), up, values_of(*low.down), low.scale, weight);
  }
}

}  // namespace sortie::trainer
