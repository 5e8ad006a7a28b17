#include "common/model/memory.h"

#include <algorithm>

#include "common/model/network.h"
#include "common/model/tape.h"
#include "common/model/tiling.h"

namespace sortie::model {
namespace {

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
/// The program, its libraries, compiled products and the first pages of the data.
constexpr std::int64_t kProcessBytes = 48 * kMebibyte;
/// MPI's own, where there are more ranks than one; beside it a reduction works in a bucket's copy.
constexpr std::int64_t kMpiBytes = 40 * kMebibyte;
constexpr std::int64_t kCacheLine = 16;  // f32 elements: every parameter starts on a cache line

/// Blocks that live as long as the training does.
class Kept {
 public:
  explicit Kept(Meter& meter) : meter_(meter) {}
  /// The bytes, of which each is written: what a block has beyond them takes no memory.
  std::int64_t take(std::int64_t bytes) {
    blocks_.push_back(meter_.allocate(bytes));
    return bytes;
  }

 private:
  Meter& meter_;
  std::vector<std::shared_ptr<void>> blocks_;
};

std::int64_t take_packed(Kept& kept, const Machine& machine, const ParameterInfo& parameter) {
  if (parameter.use != Use::matrix && parameter.use != Use::f32_matrix) return 0;
  if (parameter.products == 0.0) return 0;
  const std::int64_t element = parameter.use == Use::f32_matrix ? kF32 : machine.element;
  std::int64_t bytes = 0;
  const std::int64_t columns = parameter.shape[1];
  if (parameter.name.starts_with("layers.")) {
    for (const std::int64_t copy :
         packed_copies(machine, parameter.shape[0], columns, element, parameter.backward))
      bytes += kept.take(copy);
    return bytes;
  }
  // The head is cut into the cross-entropy's tiles of the vocabulary. The rows of a tile that is
  // not full lie apart in the kernel's memory, for which oneDNN has products of plain matrices
  // only.
  std::int64_t rows = parameter.shape[0] - parameter.padding / columns;
  for (; rows >= kVocabularyTile; rows -= kVocabularyTile)
    for (const std::int64_t copy : packed_copies(machine, kVocabularyTile, columns, element, true))
      bytes += kept.take(copy);
  if (rows > 0) bytes += kept.take(rows * columns * element);
  return bytes;
}

/// Whether checkpoints are written beside training; the last one is waited for and needs no copy.
bool saves_beside_training(const config::TrainerConfig& trainer) {
  return trainer.async_save && !trainer.save_dir.empty() &&
         (trainer.save_interval > 0 || (trainer.keep_best && trainer.eval_interval > 0));
}

/// Whether an update takes the gradients of several micro-batches.
bool accumulates(const config::TopologyConfig& topology, std::int64_t micro_batch_size,
                 std::int64_t world_size) {
  if (topology.gradient_accumulation_steps > 0) return topology.gradient_accumulation_steps > 1;
  return topology.global_batch_size > micro_batch_size * world_size;
}

}  // namespace

Result<MemoryUse> plan_memory(const config::JobConfig& job, std::int64_t micro_batch_size,
                              std::int64_t world_size, Machine machine) {
  machine.keeps_packed = accumulates(job.topology, micro_batch_size, world_size);
  SORTIE_ASSIGN_OR_RETURN(Network network, open_network(job, micro_batch_size));
  std::int64_t elements = 0, trained = 0, saved = 0;
  for (const ParameterInfo& parameter : network.parameters()) {
    const std::int64_t own = round_up(parameter.elements(), kCacheLine);
    saved += parameter.elements() * (parameter.trained ? 3 : 1);
    elements += own;
    if (parameter.trained) trained += own;
  }
  const std::int64_t padded = round_up(trained, world_size * kCacheLine);
  elements += padded - trained;

  MemoryUse plan;
  Meter meter;
  Kept kept(meter);
  plan.weights = kept.take(elements * kF32);
  if (machine.element == kBf16) plan.weights += kept.take(elements * kBf16);
  plan.gradients = kept.take(padded * kF32);
  plan.optimizer = kept.take(padded * kF32) + kept.take(padded * kF32);
  // Ranks that share the folder of checkpoints share the writing; where they do not, rank 0 has a
  // copy of the whole.
  if (saves_beside_training(job.trainer))
    plan.snapshot = (saved + world_size - 1) / world_size * kF32;
  if (machine.keeps_packed)
    for (const ParameterInfo& parameter : network.parameters())
      plan.packed += take_packed(kept, machine, parameter);
  const ModelShape shape = resolve_shape(job.model);
  const std::int64_t persistent = meter.in_use();
  // RoPE's cosines and sines.
  for (int table = 0; table < 2; ++table)
    kept.take(shape.sequence_length * shape.rotary_dims / 2 * kF32);
  network.train(meter, machine, micro_batch_size,
                job.topology.activation_checkpointing_type == "every_layer");
  plan.activations = meter.peak() - persistent;
  plan.cached = meter.reserved() - meter.peak();
  plan.process = kProcessBytes;
  if (world_size > 1)
    plan.process += kMpiBytes + std::min(padded, job.optimizer.allreduce_bucket_size) * kF32;
  return plan;
}

}  // namespace sortie::model
