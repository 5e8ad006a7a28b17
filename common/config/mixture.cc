// Rules of [model.moe], [model.mla] and [model.mtp]: X1 (experts), X2 (keys that the architecture
// does not use), X3 (latent attention), X4 (capacity).
#include <fmt/core.h>

#include <algorithm>

#include "common/config/architectures.h"
#include "common/config/fields.h"
#include "common/config/validate.h"

namespace sortie::config {
namespace {

/// With a lower factor, most choices of the router are dropped in any case: that is a mistake.
constexpr double kLeastCapacity = 0.25;

/// Whether the architecture reads the key.
bool reads(const Architecture& architecture, std::string_view key) {
  using namespace std::string_view_literals;
  if (architecture.latent)
    return key != "model.moe.layer_step" && key != "model.moe.aux_loss_coeff";
  if (!architecture.mixture) return false;
  static constexpr std::string_view kCommon[] = {"model.moe.num_experts"sv, "model.moe.topk"sv,
                                                 "model.moe.aux_loss_coeff"sv,
                                                 "model.moe.capacity_factor"sv};
  static constexpr std::string_view kOwn[] = {
      "model.moe.ffn_hidden_size"sv, "model.moe.layer_step"sv, "model.moe.normalize_topk"sv};
  return std::ranges::find(kCommon, key) != std::end(kCommon) ||
         (architecture.own_expert_keys && std::ranges::find(kOwn, key) != std::end(kOwn));
}

}  // namespace

void check_mixture(const ModelConfig& model, std::vector<Violation>& found) {
  const Architecture& architecture = architecture_of(model);
  JobConfig job;
  job.model = model;
  for (const Field& field : fields()) {
    const std::string_view section = section_of(field);
    if (section != "model.moe" && section != "model.mla" && section != "model.mtp") continue;
    if (!reads(architecture, field.key) && value_text(field, job) != default_text(field))
      found.push_back({"X2",
                       {std::string(field.key), "model.architecture"},
                       fmt::format("{} has no use for it; remove it", model.architecture),
                       /*unread=*/true});
  }
  if (architecture.mixture) {
    const MoeConfig& moe = model.moe;
    if (moe.num_experts % moe.num_groups != 0)
      found.push_back({"X1",
                       {"model.moe.num_groups", "model.moe.num_experts"},
                       fmt::format("{} groups of {} experts are not equal; use a divisor",
                                   moe.num_groups, moe.num_experts)});
    else if (moe.group_topk > moe.num_groups)
      found.push_back({"X1",
                       {"model.moe.group_topk", "model.moe.num_groups"},
                       fmt::format("there are {} groups, {} can not be chosen; use {} or less",
                                   moe.num_groups, moe.group_topk, moe.num_groups)});
    else if (const std::int64_t most = moe.num_experts / moe.num_groups * moe.group_topk;
             moe.topk > most)
      found.push_back(
          {"X1",
           {"model.moe.topk", "model.moe.num_experts", "model.moe.group_topk"},
           fmt::format("a token can choose among {} experts, not {} of them; use {} or less", most,
                       moe.topk, most)});
  }
  if (architecture.mixture && model.moe.capacity_factor > 0 &&
      model.moe.capacity_factor < kLeastCapacity)
    found.push_back(
        {"X4",
         {"model.moe.capacity_factor"},
         fmt::format("experts would take at most {} of the choices; use {} or more, or 0 for all",
                     model.moe.capacity_factor, kLeastCapacity)});
  if (architecture.latent && model.mla.qk_rope_head_dim % 2 != 0)
    found.push_back({"X3",
                     {"model.mla.qk_rope_head_dim"},
                     fmt::format("RoPE rotates pairs, {} is odd; use {}",
                                 model.mla.qk_rope_head_dim, model.mla.qk_rope_head_dim + 1)});
}

}  // namespace sortie::config
