// Whether a model can be cut over ranks as [topology] asks (rules P1 to P3).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/config/architectures.h"
#include "common/config/validate.h"

namespace sortie::config {
namespace {

constexpr const char* kTensor = "topology.tensor_parallel_size";
constexpr const char* kSequence = "topology.sequence_parallel";
constexpr const char* kStages = "topology.pipeline_parallel_size";
constexpr const char* kInterleave = "topology.pipeline_interleave";

/// The sizes that divide all of `counts`, upwards: "1, 2, 5 and 10".
std::string common_divisors(const std::vector<std::int64_t>& counts) {
  constexpr std::int64_t kMost = 4096;  // more than any group of ranks has
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = 1; size <= std::min(counts.front(), kMost); ++size)
    if (std::ranges::all_of(counts, [&](std::int64_t count) { return count % size == 0; }))
      sizes.push_back(size);
  if (sizes.size() == 1) return "1";
  return fmt::format("{} and {}", fmt::join(sizes.begin(), sizes.end() - 1, ", "), sizes.back());
}

class LayoutRules {
 public:
  explicit LayoutRules(const JobConfig& job)
      : model_(job.model), topology_(job.topology), size_(topology_.tensor_parallel_size) {}

  std::vector<Violation> check() {
    if (size_ > 1) check_tensor();
    if (topology_.sequence_parallel) check_sequence();
    check_stages();
    return std::move(found_);
  }

 private:
  void broken(std::string_view rule, std::vector<std::string> keys, std::string message) {
    found_.push_back({rule, std::move(keys), std::move(message)});
  }

  void check_tensor() {
    const std::int64_t heads = model_.num_attention_heads;
    if (heads % size_ != 0)
      broken("P1", {kTensor, "model.num_attention_heads"},
             fmt::format("{} attention heads can not be shared by {} ranks; use {}", heads, size_,
                         common_divisors({heads})));
    const std::int64_t kv_heads =
        model_.attention_num_kv_heads != 0 ? model_.attention_num_kv_heads : heads;
    if (heads % size_ == 0 && kv_heads % size_ != 0 && size_ % kv_heads != 0)
      broken("P1", {kTensor, "model.attention_num_kv_heads"},
             fmt::format("{} key-value heads can neither be shared by {} ranks nor be the same on "
                         "equal parts of them; use {}, or a multiple of {}",
                         kv_heads, size_, common_divisors({heads, kv_heads}), kv_heads));
  }

  void check_sequence() {
    if (size_ == 1)
      broken("P2", {kSequence, kTensor},
             "it shares tokens among the ranks of a tensor-parallel group, and there is none; "
             "remove it, or set tensor_parallel_size");
    else if (model_.sequence_length % size_ != 0)
      broken("P2", {"model.sequence_length", kTensor},
             fmt::format("{} tokens can not be shared by {} ranks, as topology.sequence_parallel "
                         "asks; use a multiple of {}",
                         model_.sequence_length, size_, size_));
  }

  void check_stages() {
    const std::int64_t stages = topology_.pipeline_parallel_size;
    const std::int64_t runs = topology_.pipeline_interleave;
    if (stages == 1 && runs > 1)
      broken("P3", {kInterleave, kStages},
             "it divides the layers of a pipeline's stages, and there is no pipeline; remove it, "
             "or set pipeline_parallel_size");
    else if (stages * runs > model_.num_layers)
      broken("P3", {kStages, kInterleave, "model.num_layers"},
             fmt::format("{} layers are too few for {} runs of layers = {} "
                         "(pipeline_parallel_size) * {} (pipeline_interleave); every one has a "
                         "layer at least",
                         model_.num_layers, stages * runs, stages, runs));
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
