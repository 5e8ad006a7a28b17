// Rules of [model]: T5 (heads and RoPE), M1 (layers and windows), M2 (RoPE scaling), M3
// (positions), M4 (document ends). The rules of mixtures are in mixture.cc.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "common/config/architectures.h"
#include "common/config/text.h"
#include "common/config/validate.h"

namespace sortie::config {
namespace {

using Violations = std::vector<Violation>;

/// Divisors of `n` next to `value`: "4 or 8". `n` is at most a few ten thousand.
std::string nearest_divisors(std::int64_t n, std::int64_t value) {
  std::int64_t below = 0;
  std::int64_t above = 0;
  for (std::int64_t d = 1; d <= n && above == 0; ++d) {
    if (n % d != 0) continue;
    (d < value ? below : above) = d;
  }
  if (below == 0) return fmt::format("{}", above);
  return above == 0 ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
}

void check_kv_heads(const ModelConfig& model, Violations& found) {
  const std::int64_t heads = model.num_attention_heads;
  const std::int64_t kv = model.attention_num_kv_heads;
  const std::vector<std::string> keys = {"model.attention_num_kv_heads",
                                         "model.num_attention_heads", "model.architecture"};
  if (kv == 0 || kv == heads) return;
  if (!architecture_of(model).grouped)
    found.push_back({"T5", keys,
                     fmt::format("{} has as many key and value heads as query heads, {}, not {}; "
                                 "use {}, or 0",
                                 model.architecture, heads, kv, heads)});
  else if (heads % kv != 0)
    found.push_back({"T5", keys,
                     fmt::format("model.num_attention_heads = {} is no multiple of {}; use {}",
                                 heads, kv, nearest_divisors(heads, kv))});
}

void check_rope(const ModelConfig& model, std::int64_t head_dim, Violations& found) {
  const double turned = static_cast<double>(head_dim) * model.rotary_percentage;
  const double pairs = std::round(turned / 2);
  // 0.1 * 20 is not exactly 2: tolerate the rounding error of the share, but no odd count.
  if (pairs >= 1 && std::abs(turned - 2 * pairs) <= 1e-6 * static_cast<double>(head_dim)) return;
  const std::int64_t low = std::max<std::int64_t>(2, static_cast<std::int64_t>(turned / 2) * 2);
  const std::int64_t high = low + 2 <= head_dim && turned > 2 ? low + 2 : low;
  const auto share = [&](std::int64_t count) {
    return number_text(static_cast<double>(count) / static_cast<double>(head_dim));
  };
  const std::string advice =
      head_dim < 2                     ? "use a head width of 2 or more"
      : model.rotary_percentage == 1.0 ? "use an even head width"
      : high == low
          ? fmt::format("use rotary_percentage = {} ({} of {})", share(low), low, head_dim)
          : fmt::format("use rotary_percentage = {} or {} ({} or {} of {})", share(low),
                        share(high), low, high, head_dim);
  found.push_back(
      {"T5",
       {"model.rotary_percentage", "model.head_dim", "model.hidden_size",
        "model.num_attention_heads"},
       fmt::format(
           "RoPE rotates pairs, and {} of a head width of {} is {}, not an even number from "
           "2; {}",
           number_text(model.rotary_percentage), head_dim, fmt::format("{:g}", turned), advice)});
}

void check_heads(const ModelConfig& model, Violations& found) {
  const Architecture& architecture = architecture_of(model);
  const std::int64_t heads = model.num_attention_heads;
  if (architecture.latent) return;  // [model.mla] sets the heads
  if (model.head_dim != 0 && !architecture.own_head_dim &&
      model.head_dim * heads != model.hidden_size) {
    found.push_back(
        {"T5",
         {"model.head_dim", "model.hidden_size", "model.num_attention_heads", "model.architecture"},
         fmt::format("the heads of {} are cut from the hidden size, and {} heads of {} are not {}; "
                     "use 0",
                     model.architecture, heads, model.head_dim, model.hidden_size)});
    return;
  }
  if (model.head_dim == 0 && model.hidden_size % heads != 0) {
    found.push_back(
        {"T5",
         {"model.hidden_size", "model.num_attention_heads", "model.head_dim"},
         fmt::format("{} is no multiple of model.num_attention_heads = {}; use {}{}",
                     model.hidden_size, heads, nearest_multiples(model.hidden_size, heads),
                     architecture.own_head_dim ? ", or set model.head_dim" : "")});
    return;
  }
  if (architecture.rope)
    check_rope(model, model.head_dim != 0 ? model.head_dim : model.hidden_size / heads, found);
}

/// Keys that the architecture does not use must not be set.
void check_unused(const ModelConfig& model, Violations& found) {
  const Architecture& architecture = architecture_of(model);
  const auto unused = [&](bool set, std::string_view rule, std::string_view key,
                          std::string_view why, std::string_view advice) {
    if (set)
      found.push_back({rule,
                       {fmt::format("model.{}", key), "model.architecture"},
                       fmt::format("{} {}; {}", model.architecture, why, advice),
                       /*unread=*/true});
  };
  unused(!architecture.windows && !model.attention_layers.empty(), "M1", "attention_layers",
         "has no local layers", "remove it");
  unused(!architecture.windows && model.attention_window != 0, "M1", "attention_window",
         "has no local layers", "remove it");
  unused(architecture.latent && model.head_dim != 0, "T5", "head_dim",
         "has heads as [model.mla] says", "remove it");
  unused(!architecture.rope && model.rope_scaling != "none", "M2", "rope_scaling", "has no RoPE",
         "remove it");
  unused(architecture.rope && !architecture.partial_rope && model.rotary_percentage != 1.0, "T5",
         "rotary_percentage", "rotates whole heads", "use 1.0");
}

}  // namespace

std::vector<Violation> check_model(const ModelConfig& model) {
  Violations found;
  check_kv_heads(model, found);
  check_heads(model, found);
  check_unused(model, found);
  check_mixture(model, found);
  const bool local =
      std::ranges::find(model.attention_layers, "local") != model.attention_layers.end();
  if (local && architecture_of(model).windows && model.attention_window == 0 &&
      architecture_of(model).own_window == 0)
    found.push_back({"M1",
                     {"model.attention_layers", "model.attention_window"},
                     "has local layers, but no model.attention_window says how far they see; set "
                     "it"});
  if ((model.rope_scaling == "llama3" || model.rope_scaling == "yarn") &&
      model.rope_scaling_high_frequency <= model.rope_scaling_low_frequency)
    found.push_back({"M2",
                     {"model.rope_scaling_high_frequency", "model.rope_scaling_low_frequency"},
                     fmt::format("{} is not above rope_scaling_low_frequency = {}; raise it",
                                 number_text(model.rope_scaling_high_frequency),
                                 number_text(model.rope_scaling_low_frequency))});
  if (model.num_positions != 0 && model.num_positions < model.sequence_length)
    found.push_back({"M3",
                     {"model.num_positions", "model.sequence_length"},
                     fmt::format("{} is less than model.sequence_length = {}; use 0, or shorter "
                                 "sequences",
                                 model.num_positions, model.sequence_length)});
  if (model.document_end_token >= model.vocab_size)
    found.push_back({"M4",
                     {"model.document_end_token", "model.vocab_size"},
                     fmt::format("{} is outside of the vocabulary of {}; use -1, or an id below it",
                                 model.document_end_token, model.vocab_size)});
  if (model.reset_positions && model.document_end_token < 0)
    found.push_back({"M4",
                     {"model.reset_positions", "model.document_end_token"},
                     "no model.document_end_token says where documents end; set it"});
  return found;
}

}  // namespace sortie::config
