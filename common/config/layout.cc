// Rules about the split of a model over ranks by [topology] (G1 to G3, G5, G6 and G8 to G10).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "common/config/architectures.h"
#include "common/config/forms.h"
#include "common/config/mesh.h"
#include "common/config/text.h"
#include "common/config/topology_keys.h"
#include "common/config/validate.h"

namespace sortie::config {
namespace {

/// The sizes up to `most` that fit, in words: "1, 2, 5 or 10".
template <class Fits>
std::string sizes_that_fit(std::int64_t most, const Fits& fits, std::string_view word = "or") {
  constexpr std::int64_t kMost = 4096;  // larger than any group of ranks
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = 1; size <= std::min(most, kMost); ++size)
    if (fits(size)) sizes.push_back(size);
  if (sizes.size() == 1) return "1";
  return fmt::format("{} {} {}", fmt::join(sizes.begin(), sizes.end() - 1, ", "), word,
                     sizes.back());
}

class LayoutRules {
 public:
  explicit LayoutRules(const JobConfig& job)
      : model_(job.model), topology_(job.topology), size_(topology_.tensor_parallel_size) {}

  std::vector<Violation> check() {
    if (size_ > 1) check_tensor();
    if (topology_.sequence_parallel) check_sequence();
    if (topology_.context_parallel_size > 1) check_context();
    check_stages();
    if (has_zero_bubble(topology_)) check_zero_bubble();
    check_experts();
    return std::move(found_);
  }

 private:
  void broken(std::string_view rule, std::vector<std::string> keys, std::string message) {
    found_.push_back({rule, std::move(keys), std::move(message)});
  }

  void check_tensor() {
    const std::int64_t heads = model_.num_attention_heads;
    const std::int64_t kv_heads =
        model_.attention_num_kv_heads != 0 ? model_.attention_num_kv_heads : heads;
    const std::vector<Width> widths = inner_widths();
    const auto share_heads = [&](std::int64_t size) { return heads % size == 0; };
    const auto share_kv_heads = [&](std::int64_t size) {
      return kv_heads % size == 0 || size % kv_heads == 0;
    };
    const std::string by_heads = sizes_that_fit(heads, share_heads);
    const auto share_all = [&](std::int64_t size) {
      return share_heads(size) && share_kv_heads(size) &&
             std::ranges::all_of(widths, [&](const Width& w) { return w.count % size == 0; });
    };
    const std::string by_all = sizes_that_fit(heads, share_all);
    if (!share_heads(size_))
      broken(
          "G1", {kTensor, "model.num_attention_heads"},
          fmt::format("{} attention heads can not be shared by {} ranks; use {}{}", heads, size_,
                      by_heads,
                      by_all == by_heads ? ""
                                         : fmt::format(", of which {} fit the rest of the model",
                                                       sizes_that_fit(heads, share_all, "and"))));
    for (const Width& width : widths)
      if (width.count % size_ != 0)
        broken("G1", {kTensor, width.key},
               fmt::format("{} of {} can not be shared by {} ranks; use {}, or another width",
                           width.what, width.count, size_, by_all));
    if (share_heads(size_) && !share_kv_heads(size_))
      broken("G1", {kTensor, "model.attention_num_kv_heads"},
             fmt::format("{} key-value heads can neither be shared by {} ranks nor be the same on "
                         "equal parts of them; use {}",
                         kv_heads, size_, by_all));
  }

  /// A dimension that is divided among the ranks of a tensor-parallel group.
  struct Width {
    std::string what, key;
    std::int64_t count;
  };
  std::vector<Width> inner_widths() const {
    std::vector<Width> widths;
    const std::int64_t plain = inner_width(model_);
    const bool mixed = architecture_of(model_).mixture;
    bool any_plain = !mixed;
    for (std::int64_t layer = 0; mixed && layer < model_.num_layers + model_.mtp.num_layers;
         ++layer)
      any_plain = any_plain || !is_mixture(model_, layer);
    if (any_plain) widths.push_back({"an inner width", "model.ffn_hidden_size", plain});
    if (!mixed) return widths;
    const std::int64_t expert =
        model_.moe.ffn_hidden_size != 0 ? model_.moe.ffn_hidden_size : plain;
    if (expert_tensor() == size_)
      widths.push_back({"an expert's inner width", "model.moe.ffn_hidden_size", expert});
    else if (model_.moe.num_shared_experts > 0)
      widths.push_back({"the shared experts' inner width", "model.moe.num_shared_experts",
                        model_.moe.num_shared_experts * expert});
    return widths;
  }

  /// Ranks per expert. If not set, the tensor-parallel size; the world size is not known here.
  std::int64_t expert_tensor() const {
    return topology_.expert_tensor_parallel_size != 0 ? topology_.expert_tensor_parallel_size
                                                      : size_;
  }

  void check_experts() {
    const std::int64_t ranks = topology_.expert_parallel_size;
    const std::int64_t tensor = topology_.expert_tensor_parallel_size;
    if (ranks == 1 && tensor == 0) return;
    if (!architecture_of(model_).mixture) {
      broken(
          "G6", {ranks > 1 ? kExperts : kExpertTensor, "model.architecture"},
          fmt::format("{} has no experts that ranks could share; remove it", model_.architecture));
      return;
    }
    // Full sharding gathers layers from the ranks that hold the same layers. Experts and the other
    // weights would need two different groups.
    if (topology_.parameter_sharding == "full" && (ranks > 1 || tensor != size_))
      broken("G9", {kSharding, ranks > 1 ? kExperts : kExpertTensor},
             "full sharding does not go with experts on ranks of their own; use \"optimizer\", or "
             "remove the key of experts");
    const std::int64_t experts = model_.moe.num_experts;
    if (experts % ranks != 0)
      broken("G6", {kExperts, "model.moe.num_experts"},
             fmt::format(
                 "{} experts can not be shared out evenly to {} ranks; use {}", experts, ranks,
                 sizes_that_fit(experts, [&](std::int64_t size) { return experts % size == 0; })));
    // Ranks that share an expert must get the same rows, which only ranks of one replica have.
    if (tensor != 0 && size_ % tensor != 0)
      broken("G6", {kExpertTensor, kTensor},
             fmt::format("{} ranks that share an expert must be of one tensor-parallel group, "
                         "which has {}; use {}",
                         tensor, size_, sizes_that_fit(size_, [&](std::int64_t size) {
                           return size_ % size == 0;
                         })));
    const std::int64_t width =
        model_.moe.ffn_hidden_size != 0 ? model_.moe.ffn_hidden_size : inner_width(model_);
    if (tensor != 0 && tensor != size_ && width % tensor != 0)
      broken("G6", {kExpertTensor, "model.moe.ffn_hidden_size"},
             fmt::format("an expert's inner width of {} can not be shared by {} ranks; use {}, or "
                         "another width",
                         width, tensor, sizes_that_fit(size_, [&](std::int64_t size) {
                           return size_ % size == 0 && width % size == 0;
                         })));
  }

  void check_sequence() {
    if (size_ == 1)
      broken("G2", {kSequence, kTensor},
             "it shares tokens among the ranks of a tensor-parallel group, and there is none; "
             "remove it, or set tensor_parallel_size");
    else if (topology_.context_parallel_size == 1 && model_.sequence_length % size_ != 0)
      broken("G2", {"model.sequence_length", kTensor},
             fmt::format("{} tokens can not be shared by {} ranks, as topology.sequence_parallel "
                         "asks; use a multiple of {}",
                         model_.sequence_length, size_, size_));
  }

  /// Each rank has two chunks of every sequence. With sequence parallelism its tokens are also
  /// divided evenly among the ranks of its tensor-parallel group.
  void check_context() {
    const std::int64_t ranks = topology_.context_parallel_size;
    const std::int64_t parts = topology_.sequence_parallel ? size_ : 1;
    const std::int64_t unit = ranks * std::lcm(std::int64_t{2}, parts);
    if (model_.sequence_length % unit == 0) return;
    const std::string why =
        parts == 1 ? fmt::format("2 chunks for each of {} ranks", ranks)
                   : fmt::format(
                         "2 chunks for each of {} ranks and, as topology.sequence_parallel "
                         "asks, equal parts of these for {}",
                         ranks, parts);
    broken(
        "G5", {kContext, "model.sequence_length"},
        fmt::format("{} tokens can not be cut into {}; use a sequence length of {}",
                    model_.sequence_length, why, nearest_multiples(model_.sequence_length, unit)));
  }

  void check_stages() {
    const std::int64_t stages = topology_.pipeline_parallel_size;
    const std::int64_t runs = topology_.pipeline_interleave;
    if (stages == 1 && runs > 1)
      broken("G3", {kInterleave, kStages},
             "it divides the layers of a pipeline's stages, and there is no pipeline; remove it, "
             "or set pipeline_parallel_size");
    else if (stages * runs > model_.num_layers)
      broken("G3", {kStages, kInterleave, "model.num_layers"},
             fmt::format("{} layers are too few for {} runs of layers = {} "
                         "(pipeline_parallel_size) * {} (pipeline_interleave); every one has a "
                         "layer at least",
                         model_.num_layers, stages * runs, stages, runs));
    const std::vector<std::string>& layers = topology_.pipeline_stage_layers;
    if (layers.empty()) return;
    std::int64_t sum = 0;
    for (const std::string& count : layers) sum += layer_count(count);
    if (static_cast<std::int64_t>(layers.size()) != stages * runs)
      broken("G8", {kStageLayers, kStages, kInterleave},
             fmt::format("it has {} numbers for {} runs of layers = {} (pipeline_parallel_size) * "
                         "{} (pipeline_interleave); write one for each",
                         layers.size(), stages * runs, stages, runs));
    else if (sum != model_.num_layers)
      broken("G8", {kStageLayers, "model.num_layers"},
             fmt::format("its numbers are {} layers in all, and the model has {}; make them equal",
                         sum, model_.num_layers));
  }

  /// The schedule delays the gradients of single weights: there must be stages that wait, and
  /// gradients that can be delayed.
  void check_zero_bubble() {
    if (topology_.pipeline_parallel_size == 1)
      broken("G10", {kSchedule, kStages},
             "it fills the time in which stages wait, and there is no pipeline; remove it, or set "
             "pipeline_parallel_size");
    if (topology_.pipeline_interleave > 1)
      broken("G10", {kSchedule, kInterleave},
             "zero_bubble has one run of layers a stage; use pipeline_interleave = 1, or "
             "pipeline_schedule = \"1f1b\"");
    if (topology_.parameter_sharding == "full")
      broken(
          "G10", {kSchedule, kSharding},
          "with \"full\" the gradients of a layer are summed when its pass ends, so they can not "
          "be put off; use parameter_sharding = \"optimizer\", or pipeline_schedule = \"1f1b\"");
    if (topology_.activation_checkpointing_type != "disabled")
      broken("G10", {kSchedule, kCheckpointing},
             "recomputed layers keep nothing for gradients that are put off; use "
             "activation_checkpointing_type = \"disabled\", or pipeline_schedule = \"1f1b\"");
  }

  const ModelConfig& model_;
  const TopologyConfig& topology_;
  const std::int64_t size_;
  std::vector<Violation> found_;
};

}  // namespace

std::vector<Violation> check_layout(const JobConfig& job) {
  return LayoutRules(job).check();
}

}  // namespace sortie::config
