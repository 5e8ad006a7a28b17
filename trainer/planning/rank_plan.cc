#include "trainer/planning/rank_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "common/config/architectures.h"
#include "common/config/mesh.h"
#include "common/config/validate.h"
#include "trainer/loop/fp8_histories.h"
#include "trainer/loop/pipeline_step.h"
#include "trainer/models/mixture.h"
#include "trainer/models/model.h"
#include "trainer/models/shape.h"
#include "trainer/nn/shares.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/meta/planned_gpu.h"
#include "trainer/optim/optimizer.h"
#include "trainer/optim/update_gate.h"
#include "trainer/parallel/gradient_reducer.h"
#include "trainer/parallel/layout.h"
#include "trainer/parallel/partial_gradients.h"
#include "trainer/parallel/stage_pairs.h"
#include "trainer/parallel/weight_gatherer.h"
#include "trainer/planning/part_parameters.h"

namespace sortie::trainer {
namespace {

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
/// The program, its libraries, compiled products and the first pages of the data.
constexpr std::int64_t kProcessBytes = 48 * kMebibyte;
/// Memory of MPI itself, with more than one rank, and of the buffers in which reductions receive
/// from each peer (trainer/parallel/reduction.cc).
constexpr std::int64_t kMpiBytes = 40 * kMebibyte;
constexpr std::int64_t kReductionBytesOfPeer = 8 * (std::int64_t{60} << 10);
constexpr std::int64_t kMostReductionBytes = 32 * kMebibyte;
/// GPU memory that the driver takes for the context and the kernels of the module and of cuBLASLt,
/// measured on an H200 with driver 580, where five trainings took 536 to 540 MiB in addition to the
/// allocator's; and NCCL's buffers per group of ranks, which are not measured.
constexpr std::int64_t kGpuContextBytes = 540 * kMebibyte;
constexpr std::int64_t kNcclGroupBytes = 256 * kMebibyte;

/// Rejects sizes that are allowed separately but whose products overflow 64 bits, or whose list of
/// parameters takes a minute to build.
Result<> check_sizes(const config::ModelConfig& config, std::int64_t micro_batch_size) {
  constexpr double kMostMatrices = 1e6, kMostElements = 1e17;
  const ModelShape shape = resolve_shape(config);
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const bool mixed = config::architecture_of(config).mixture;
  const double experts = mixed ? real(config.moe.num_experts) : 0.0;
  const double top_k = mixed ? real(config.moe.topk) : 1.0;
  const double latent = real(config.mla.kv_lora_rank + config.mla.q_lora_rank);
  const double heads = real(shape.heads) * real(shape.head_dim + shape.value_dim);
  const double shared = 1.0 + real(config.moe.num_shared_experts);
  const double ffn = std::max(real(shape.ffn), shared * real(expert_ffn(config, shape)));
  const double hidden = std::max(real(shape.hidden), latent);
  const double widest = std::max({3.0 * heads, 2.0 * ffn, 2.0 * hidden, experts});
  const double layers = real(shape.layers + config.mtp.num_layers);
  const double matrices = layers * (12.0 + 2.0 * experts);
  const double rows = real(micro_batch_size) * real(shape.sequence_length) * top_k;
  const double weights = matrices * widest * hidden + 2.0 * real(shape.vocab_size) * hidden;
  const double activations = 16.0 * layers * rows * widest;
  if (matrices <= kMostMatrices && weights <= kMostElements && activations <= kMostElements)
    return {};
  return fail(ErrorCode::config,
              fmt::format("model: {:.1e} matrices with {:.1e} weights and {:.1e} activations are "
                          "more than any machine holds; is a size mistyped?",
                          matrices, weights, activations));
}

/// Whether checkpoints are written while training continues. The last one is not, and needs no
/// copy.
bool saves_beside_training(const config::TrainerConfig& trainer) {
  return trainer.async_save && !trainer.save_dir.empty() &&
         (trainer.save_interval > 0 || (trainer.keep_best && trainer.eval_interval > 0));
}

std::int64_t replicas_of(const config::TopologyConfig& topology, const PlanOptions& options) {
  return options.world_size / config::ranks_of_replica(topology);
}

/// Returns the number of micro-batches per update.
std::int64_t micro_steps(const config::TopologyConfig& topology, const PlanOptions& options) {
  if (topology.gradient_accumulation_steps > 0) return topology.gradient_accumulation_steps;
  const std::int64_t each = options.micro_batch_size * replicas_of(topology, options);
  return std::max<std::int64_t>(1, topology.global_batch_size / each);
}

/// A rank on the meta device, with everything that it holds between steps.
class MetaRank {
 public:
  MetaRank(const config::JobConfig& job, const PlanOptions& options)
      : job_(job),
        options_(options),
        layout_(job.topology, options.rank, static_cast<int>(options.world_size)),
        micro_steps_(micro_steps(job.topology, options)),
        context_(options.threads, options.gpu ? ops::kPlannedGpu : Device{DeviceKind::meta}),
        store_(layout_.tensor_group(), layout_.expert_group()),
        model_(context_, job.model, store_,
               job.topology.activation_checkpointing_type == "every_layer",
               part_of_stage(job, layout_.coordinate(Axis::pipeline))),
        optimizer_(job, store_),
        gate_(job),
        fp8_histories_(layout_, store_) {}

  Result<> prepare() {
    SORTIE_TRY(check_fp8_rows(job_, options_.micro_batch_size));
    if (options_.gpu) SORTIE_TRY(check_device_limits(job_.model, Device{DeviceKind::cuda}));
    SORTIE_ASSIGN_OR_RETURN(const StageFacts facts,
                            prepare_parameters(job_, model_.part(), store_, optimizer_));
    SORTIE_TRY(store_.cut(layout_.places()));
    store_.share(share_rules(job_, layout_));
    SORTIE_TRY(optimizer_.prepare(layout_));
    // With one micro-batch each copy is used only once; gathered weights are released after use.
    context_.keep_packed_weights(micro_steps_ > 1 && !store_.gathers());
    store_.finalize(context_, options_.dtype, layout_.replicas().size() * kLineElements,
                    /*with_optimizer=*/true);
    optimizer_.begin(context_, layout_);
    gate_.allocate(context_);
    reducer_ = std::make_unique<GradientReducer>(store_, layout_.replicas(),
                                                 job_.optimizer.allreduce_bucket_size,
                                                 &layout_.expert_replicas());
    gatherer_ =
        std::make_unique<WeightGatherer>(store_, layout_.replicas(), &layout_.expert_replicas());
    passes_ = std::make_unique<PipelineStep>(context_, layout_, store_, model_, facts,
                                             config::has_zero_bubble(job_.topology));
    return {};
  }

  /// Runs a step like TrainingStep::begin(), with at most two micro-batches per stage: in the
  /// second one all packed copies that the first has made exist, and the maximum number of
  /// micro-batches has been in flight. Further micro-batches add nothing new.
  void step() {
    const Tensor sums = context_.zeros(DType::f64, {3 + ops::kGateOutcomeValues});
    Tensor loss = sums.slice(0, 0, 2), squared_norm = sums.slice(0, 2, 1);
    Tensor outcome = sums.slice(0, 3, ops::kGateOutcomeValues);
    const std::int64_t stages = layout_.size(Axis::pipeline);
    std::int64_t planned = std::min(micro_steps_, 2 * stages);
    if (job_.topology.pipeline_interleave > 1)
      planned = micro_steps_ > stages ? 2 * stages : stages;
    const std::int64_t flop = context_.flop();
    pass_all(planned, loss);
    flop_ = (context_.flop() - flop) / planned;
    passes_->finish();
    const SentBytes passed = layout_.sent();
    reducer_->begin();
    reducer_->finish();
    sum_partial_gradients(store_, layout_.tensor_group());
    optimizer_.squared_gradient_norm(context_, layout_, squared_norm);
    passes_->forget_weights();
    gate_.decide(context_, {}, loss.slice(0, 0, 1), squared_norm, outcome);
    fp8_histories_.roll(context_);
    optimizer_.update(context_, /*step=*/1, gate_.gate(), /*rate=*/1.0,
                      [this](std::size_t bucket) { gatherer_->start(bucket); });
    routing_.clear(context_);
    store_.zero_gradients();
    memory_ = tensor_memory(store_, context_.allocator());
    sent_ = layout_.sent();
    if (planned < micro_steps_) count_other_passes(passed, planned, loss);
  }

  RankPlan plan() {
    RankPlan plan;
    plan.parameters = count_parameters(store_);
    plan.in_bf16 = bf16_products(store_);
    plan.flop_per_token = static_cast<double>(flop_) /
                          static_cast<double>(options_.micro_batch_size * tokens_of_sequence());
    plan.memory = memory_;
    if (saves_beside_training(job_.trainer)) plan.memory.snapshot = share_bytes();
    // Two snapshots, each of its own share and, with other ranks, of a share of another host.
    if (job_.trainer.memory_checkpoint_interval > 0)
      plan.memory.memory_checkpoints = 2 * (options_.world_size > 1 ? 2 : 1) * share_bytes();
    plan.sent = sent_;
    plan.bubble = bubble_share({layout_.size(Axis::pipeline),
                                static_cast<int>(job_.topology.pipeline_interleave), micro_steps_,
                                config::has_zero_bubble(job_.topology)});
    plan.memory.process = kProcessBytes;
    if (options_.world_size > 1)
      plan.memory.process += kMpiBytes + std::min((options_.world_size - 1) * kReductionBytesOfPeer,
                                                  kMostReductionBytes);
    if (options_.gpu) plan.memory.device = kGpuContextBytes + groups() * kNcclGroupBytes;
    return plan;
  }

 private:
  std::int64_t tokens_of_sequence() const { return job_.model.sequence_length; }
  /// Runs the passes of `micro_batches` micro-batches. No gradients are reduced meanwhile: only the
  /// passes send bytes.
  void pass_all(std::int64_t micro_batches, Tensor& loss) {
    // Conversations mask targets, which must be counted before the passes: a step holds all its
    // micro-batches at once.
    const bool all_at_once = !job_.data.chat_files.empty();
    std::vector<PipelineStep::MicroBatch> waiting;
    for (std::int64_t micro = 0; all_at_once && micro < std::max(micro_steps_, micro_batches);
         ++micro)
      waiting.push_back(next_batch());
    std::map<std::int64_t, PipelineStep::MicroBatch> open;
    std::optional<Allocator::RepeatedMemory> memory;  // of a micro-batch, as in TrainingStep
    for (const PipelineAction& action :
         passes_->begin_training(micro_batches, options_.micro_batch_size * tokens_of_sequence())) {
      passes_->await(action);
      if (action.kind == PipelineAction::Kind::weights) {
        passes_->weights(action);
        continue;
      }
      if (action.kind == PipelineAction::Kind::backward) {
        const auto pass = passes_->backward(action);
        routing_.add(context_, pass->context);
        memory.reset();
        continue;
      }
      if (action.run == 0)
        open[action.micro_batch] =
            all_at_once ? std::exchange(waiting[static_cast<std::size_t>(action.micro_batch)], {})
                        : next_batch();
      ForwardContext forward;
      forward.training = true;
      if (passes_->one_by_one()) memory.emplace(context_.allocator());
      passes_->forward(action, open[action.micro_batch], forward, 1.0f, loss);
      if (passes_->last_of_stage(action)) open.erase(action.micro_batch);
    }
  }
  /// Adds what the micro-batches that have not been planned send. Each sends as much as one more
  /// micro-batch after the `planned` ones, which have sent `passed`.
  void count_other_passes(const SentBytes& passed, std::int64_t planned, Tensor& loss) {
    const std::int64_t added = layout_.size(Axis::pipeline);
    pass_all(planned + added, loss);
    passes_->finish();
    const SentBytes in_step = sent_;
    const auto bytes_in = [](const SentBytes& sent, const SentTo& to) {
      const auto found = sent.find(to);
      return found == sent.end() ? 0.0 : found->second;
    };
    for (const auto& [to, bytes] : layout_.sent()) {
      const double more = bytes - bytes_in(in_step, to) - bytes_in(passed, to);
      sent_[to] += more / static_cast<double>(added) * static_cast<double>(micro_steps_ - planned);
    }
  }
  /// The number of this rank's NCCL groups, if NCCL does the collectives of GPUs: every group of
  /// the layout, and one per connection between stages.
  std::int64_t groups() const {
    if (job_.topology.backend == "mpi") return 0;
    std::int64_t shared = 0;
    const auto count = [&shared](const std::vector<int>& ranks, const std::string&) {
      if (ranks.size() > 1) ++shared;
      return make_single_communicator();
    };
    const auto world = static_cast<int>(options_.world_size);
    if (world > 1) ++shared;
    if (layout_.size(Axis::data) != world || layout_.experts_apart())
      MeshGroups(layout_.mesh(), options_.rank, count);
    const int stage = layout_.coordinate(Axis::pipeline);
    return shared +
           std::ranges::count_if(stage_pairs(layout_.size(Axis::pipeline)), [&](const auto& pair) {
             return pair.first == stage || pair.second == stage;
           });
  }
  /// Bytes of this rank's share of a checkpoint. Assumes that the ranks share the folder of
  /// checkpoints and so the writing; otherwise rank 0 has a copy of the whole state.
  std::int64_t share_bytes() const {
    constexpr std::int64_t kMasterBytes = sizeof(float);
    const auto moment = static_cast<std::int64_t>(dtype_bytes(store_.moment_dtype()));
    std::int64_t dense = 0, experts = 0, alone = 0;  // bytes
    for (const auto& parameter : store_.parameters()) {
      const std::int64_t elements = own_elements(parameter->blocks());
      const bool moments = parameter->trained() && !store_.own_momentum();
      (store_.held_by(*parameter) == ReduceGroup::expert ? experts : dense) +=
          elements * (kMasterBytes + (moments ? 2 * moment : 0));
      if (parameter->trained() && store_.own_momentum()) alone += elements * kMasterBytes;
    }
    // Shares are equal to within an element.
    const auto share = [](std::int64_t bytes, std::int64_t ranks) {
      return (bytes + ranks * kMasterBytes - 1) / (ranks * kMasterBytes) * kMasterBytes;
    };
    return share(dense, layout_.replicas().size()) +
           share(experts, layout_.expert_replicas().size()) + share(alone, 1);
  }
  PipelineStep::MicroBatch next_batch() {
    const Shape shape{options_.micro_batch_size, tokens_of_sequence()};
    return {context_.empty(DType::i32, shape), context_.empty(DType::i32, shape)};
  }

  const config::JobConfig& job_;
  const PlanOptions options_;
  const Layout layout_;
  const std::int64_t micro_steps_;
  ExecutionContext context_;
  ParameterStore store_;
  const LanguageModel model_;
  Optimizer optimizer_;
  UpdateGate gate_;
  Fp8Histories fp8_histories_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<WeightGatherer> gatherer_;
  std::unique_ptr<PipelineStep> passes_;
  StepRouting routing_;
  std::int64_t flop_ = 0;  // of a micro-batch
  MemoryUse memory_;
  SentBytes sent_;  // in a step
};

}  // namespace

ParameterCount count_parameters(const ParameterStore& store) {
  ParameterCount count;
  double unmet = 0.0;
  for (const auto& parameter : store.parameters()) {
    const ParameterSpec& spec = parameter->spec();
    if (spec.use == Use::state || !spec.tied_to.empty()) continue;
    const std::int64_t elements = parameter->spec().shape.elements() - parameter->padding();
    count.total += elements;
    if (parameter->trained()) count.trained += elements;
    unmet += static_cast<double>(elements) * (1.0 - parameter->token_share());
  }
  count.active = count.total - std::llround(unmet);
  return count;
}

Result<RankPlan> plan_rank(const config::JobConfig& job, const PlanOptions& options) {
  SORTIE_TRY(check_sizes(job.model, options.micro_batch_size));
  MetaRank rank(job, options);
  SORTIE_TRY(rank.prepare());
  rank.step();
  RankPlan plan = rank.plan();
  if (job.topology.tensor_parallel_size == 1 && job.topology.context_parallel_size == 1 &&
      job.topology.expert_parallel_size == 1)
    return plan;
  // Operations are counted for the whole stage, on a rank that shares nothing: ranks that share
  // layers repeat some operations, those that share sequences do only a part, and those with their
  // own experts do what other ranks route to them.
  config::JobConfig whole_job = job;
  whole_job.topology.tensor_parallel_size = 1;
  whole_job.topology.sequence_parallel = false;
  whole_job.topology.context_parallel_size = 1;
  whole_job.topology.expert_parallel_size = 1;
  whole_job.topology.expert_tensor_parallel_size = 0;
  const std::int64_t stages = job.topology.pipeline_parallel_size;
  PlanOptions whole_options = options;
  whole_options.world_size = stages;
  whole_options.rank = static_cast<int>(options.rank * stages / options.world_size);
  MetaRank whole(whole_job, whole_options);
  SORTIE_TRY(whole.prepare());
  whole.step();
  plan.flop_per_token = whole.plan().flop_per_token;
  return plan;
}

Result<std::vector<RankPlan>> plan_stages(const config::JobConfig& job, PlanOptions options) {
  const std::int64_t stages = job.topology.pipeline_parallel_size;
  std::vector<RankPlan> plans;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    // The pipeline is the slowest axis of the mesh.
    options.rank = static_cast<int>(options.world_size / stages * stage);
    SORTIE_ASSIGN_OR_RETURN(plans.emplace_back(), plan_rank(job, options));
  }
  return plans;
}

RankPlan whole_plan(const std::vector<RankPlan>& stages) {
  // If the stages compute on GPUs, GPU memory is what is scarce.
  RankPlan whole = *std::ranges::max_element(stages, {}, [](const RankPlan& plan) {
    return plan.memory.device > 0 ? plan.memory.on_gpu() : plan.memory.total();
  });
  whole.parameters = {};
  whole.flop_per_token = 0.0;
  whole.in_bf16 = {};
  for (const RankPlan& stage : stages) {
    whole.parameters.total += stage.parameters.total;
    whole.parameters.active += stage.parameters.active;
    whole.parameters.trained += stage.parameters.trained;
    whole.flop_per_token += stage.flop_per_token;
    whole.in_bf16.add(stage.in_bf16);
  }
  return whole;
}

}  // namespace sortie::trainer
