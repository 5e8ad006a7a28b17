// Keys of [logger] to [profiler]: what a run logs and records, and how it trains.
#include "common/config/field_forms.h"
#include "common/config/fields.h"
#include "common/config/forms.h"
#include "common/config/training_groups.h"

namespace sortie::config {
namespace {

template <auto M>
constexpr auto logger = member<&JobConfig::logger, M>;
template <auto M>
constexpr auto topology = member<&JobConfig::topology, M>;
template <auto M>
constexpr auto optimizer = member<&JobConfig::optimizer, M>;
template <auto M>
constexpr auto schedule = member<&JobConfig::learning_rate_scheduler, M>;
template <auto M>
constexpr auto outer = member<&JobConfig::outer, M>;
template <auto M>
constexpr auto lora = member<&JobConfig::lora, M>;
template <auto M>
constexpr auto trainer = member<&JobConfig::trainer, M>;
template <auto M>
constexpr auto profiler = member<&JobConfig::profiler, M>;

using Logger = LoggerConfig;
using Topology = TopologyConfig;
using Optimizer = OptimizerConfig;
using Schedule = LearningRateSchedulerConfig;
using Outer = OuterConfig;
using Lora = LoraConfig;
using Trainer = TrainerConfig;
using Profiler = ProfilerConfig;

constexpr std::int64_t kTrillion = 1'000'000'000'000;
const IntegerRange kSteps{0, kTrillion};
const IntegerRange kAtLeastOneStep{1, kTrillion};
const Form kText{"text", check_any};
const Form kLayerCount{"a number of layers, like \"13\"", check_layer_count};
const Form kParameterPatterns{"patterns of parameter names, * and ? as in a shell",
                              check_parameter_pattern};

// clang-format off
const Field kTrainingFields[] = {
    {"logger.log_level", logger<&Logger::log_level>, Choices{{"debug", "info", "warning", "error"}}, "", "Least severe message that is logged", kUser},
    {"logger.log_dir", logger<&Logger::log_dir>, kPathForm, "",
     "State folder, with a folder runs/ID per run; empty = $XDG_STATE_HOME/sortie, else ~/.local/state/sortie", kPath | kUser},
    {"logger.log_interval", logger<&Logger::log_interval>, kAtLeastOneStep, "steps", "Steps between metrics; the log has one line a second at most", kUser},
    {"logger.tensorboard", logger<&Logger::tensorboard>, {}, "", "Write TensorBoard events into the run folder", kUser},
    {"logger.wandb_mode", logger<&Logger::wandb_mode>, Choices{{"disabled", "offline"}}, "",
     "offline = write a Weights & Biases run into the run folder, which `wandb sync` uploads; a resumed run appends to the file of the first run", kUser},
    {"logger.wandb_project", logger<&Logger::wandb_project>, kText, "", "Project of that run", kUser},
    {"logger.wandb_group", logger<&Logger::wandb_group>, kText, "", "Group of that run; empty = none"},
    {"logger.wandb_name", logger<&Logger::wandb_name>, kText, "", "Name of that run; empty = the id of the first run"},
    {"logger.wandb_tags", logger<&Logger::wandb_tags>, kText, "", "Tags of that run"},

    {"topology.data_parallel_size", topology<&Topology::data_parallel_size>, IntegerRange{0, 1 << 28}, "ranks",
     "Replicas of the model; 0 = ranks / (tensor_parallel_size * context_parallel_size * pipeline_parallel_size), another value is checked against it"},
    {"topology.tensor_parallel_size", topology<&Topology::tensor_parallel_size>, IntegerRange{1, 1 << 16}, "ranks",
     "Ranks that share the matrices of every layer: each has a part of the attention heads, of the MLP and of the vocabulary", kCommon},
    {"topology.sequence_parallel", topology<&Topology::sequence_parallel>, {}, "",
     "Ranks of a tensor-parallel group share the tokens between matrices, too: norms, dropout and the residual stream"},
    {"topology.context_parallel_size", topology<&Topology::context_parallel_size>, IntegerRange{1, 1 << 16}, "ranks",
     "Ranks that share the tokens of each sequence: keys and values go from one to the next, and activations take as many times less memory", kCommon},
    {"topology.pipeline_parallel_size", topology<&Topology::pipeline_parallel_size>, IntegerRange{1, 1 << 16}, "stages",
     "Number of pipeline stages of consecutive layers, each on ranks of its own; micro-batches go through them one after another", kCommon},
    {"topology.pipeline_interleave", topology<&Topology::pipeline_interleave>, IntegerRange{1, 1 << 10}, "",
     "Number of model chunks (runs of consecutive layers) per stage; more chunks mean less idle time and more messages"},
    {"topology.pipeline_schedule", topology<&Topology::pipeline_schedule>, Choices{{"1f1b", "zero_bubble"}}, "",
     "Order of the passes: 1f1b = one forward, one backward; zero_bubble = weight gradients are computed in the time in which a stage would be idle: less idle time, more activation memory on later stages"},
    {"topology.pipeline_stage_layers", topology<&Topology::pipeline_stage_layers>, kLayerCount, "",
     "Layers of each stage (with pipeline_interleave of each run, in the order of the layers); empty = balanced by the work and memory of layers"},
    {"topology.expert_parallel_size", topology<&Topology::expert_parallel_size>, IntegerRange{1, 1 << 16}, "ranks",
     "Ranks that divide the routed experts of every mixture; tokens are sent to the ranks of their experts by all-to-all", kCommon},
    {"topology.expert_tensor_parallel_size", topology<&Topology::expert_tensor_parallel_size>, IntegerRange{0, 1 << 16}, "ranks",
     "Ranks that share the matrices of each routed expert; 0 = tensor_parallel_size if the number of ranks allows it, else 1"},
    {"topology.parameter_sharding", topology<&Topology::parameter_sharding>, Choices{{"none", "optimizer", "full"}}, "",
     "What is sharded over the replicas: none = nothing; optimizer = optimizer state and f32 weights (ZeRO stage 1); full = also weights and gradients, gathered layer by layer (ZeRO stage 3, FSDP)", kCommon},
    {"topology.micro_batch_size", topology<&Topology::micro_batch_size>, IntegerRange{0, 1 << 20}, "sequences",
     "Sequences per replica and forward pass; 0 = computed from gradient_accumulation_steps and global_batch_size", kShown},
    {"topology.gradient_accumulation_steps", topology<&Topology::gradient_accumulation_steps>, IntegerRange{0, 1 << 20}, "micro-batches",
     "Micro-batches per replica and optimizer step; 0 = computed from global_batch_size, else 1"},
    {"topology.global_batch_size", topology<&Topology::global_batch_size>, IntegerRange{0, kTrillion}, "sequences",
     "Sequences per optimizer step = micro_batch_size * gradient_accumulation_steps * replicas of the model, exactly; 0 = computed from these", kCommon},
    {"topology.activation_checkpointing_type", topology<&Topology::activation_checkpointing_type>, Choices{{"disabled", "every_layer"}}, "",
     "every_layer keeps only each layer's input and computes the rest again in the backward pass: less memory, more time", kCommon},
    {"topology.backend", topology<&Topology::backend>, Choices{{"auto", "mpi", "nccl"}}, "",
     "Library of the collectives: nccl = between GPUs, needs no MPI on the hosts; auto = nccl if each rank has a GPU, else mpi"},
    {"topology.gradient_compression", topology<&Topology::gradient_compression>, Choices{{"auto", "none", "low", "medium", "high", "no", "weak", "strong"}}, "",
     "What sites send each other: none (no) = the gradients of every step; low (weak), medium, high (strong) = the change of 20, 50, 100 steps in bf16, 8 bits, 4 bits; "
     "auto = medium for several sites, else none"},
    {"topology.batch_rampup_start", topology<&Topology::batch_rampup_start>, IntegerRange{0, kTrillion}, "sequences",
     "Global batch size of the first steps, from where it grows to global_batch_size; 0 = no ramp-up"},
    {"topology.batch_rampup_increment", topology<&Topology::batch_rampup_increment>, IntegerRange{0, kTrillion}, "sequences",
     "Increment of the global batch"},
    {"topology.batch_rampup_samples", topology<&Topology::batch_rampup_samples>, IntegerRange{0, kTrillion}, "sequences",
     "Trained sequences after which the global batch has its full size; each intermediate size gets an equal share of them"},

    {"optimizer.name", optimizer<&Optimizer::name>, Choices{{"adamw", "demo"}}, "",
     "adamw = AdamW on the gradient of all ranks; demo = decoupled momentum (DeMo): each rank keeps its own momentum; ranks exchange its largest cosine coefficients, "
     "a hundredth of the gradient's bytes, and update by the sign of their mean"},
    {"optimizer.momentum", optimizer<&Optimizer::momentum>, NumberRange{0, 1, false, true}, "", "demo: factor by which the momentum decays in each step"},
    {"optimizer.chunk", optimizer<&Optimizer::chunk>, IntegerRange{1, 64}, "values", "demo: the longest side of the blocks that matrices are cut into"},
    {"optimizer.top_k", optimizer<&Optimizer::top_k>, IntegerRange{1, 4096}, "coefficients", "demo: coefficients of a block that are sent in a step"},
    {"optimizer.beta1", optimizer<&Optimizer::beta1>, NumberRange{0, 1, false, true}, "", "Decay of the mean of the gradients"},
    {"optimizer.beta2", optimizer<&Optimizer::beta2>, NumberRange{0, 1, false, true}, "", "Decay of the mean of the squared gradients"},
    {"optimizer.eps", optimizer<&Optimizer::eps>, NumberRange{0, 1, true, false}, "", "Added to the root of the mean of the squared gradients"},
    {"optimizer.moments", optimizer<&Optimizer::moments>, Choices{{"f32", "bf16"}}, "",
     "What both means are kept in: bf16 = half of their memory and checkpoint bytes, computed in f32 and rounded up or down at random, so that no change is too small to count"},
    {"optimizer.weight_decay", optimizer<&Optimizer::weight_decay>, NumberRange{0, 10}, "", "Decoupled decay of matrices, times the learning rate per step", kCommon},
    {"optimizer.gradient_clipping", optimizer<&Optimizer::gradient_clipping>, NumberRange{0, 1e6}, "", "Largest global L2 norm of the gradients; 0 = off", kCommon},
    {"optimizer.allreduce_bucket_size", optimizer<&Optimizer::allreduce_bucket_size>, IntegerRange{0, kMaxInt32}, "f32 elements",
     "Gradients that are reduced together during the backward pass; 0 = a sixteenth of all, within 262144 and 8000000"},
    {"optimizer.skip_loss_zscore", optimizer<&Optimizer::skip_loss_zscore>, NumberRange{0, 1e6, false, false, true}, "deviations",
     "Skip the update of a step whose loss is this many standard deviations above its running mean; 0 = never"},
    {"optimizer.skip_gradient_norm_zscore", optimizer<&Optimizer::skip_gradient_norm_zscore>, NumberRange{0, 1e6, false, false, true}, "deviations",
     "The same for the global gradient norm; 0 = never"},
    {"optimizer.outlier_window", optimizer<&Optimizer::outlier_window>, IntegerRange{2, 1'000'000}, "steps",
     "Window of the running means; before this many steps nothing is skipped"},
    {"optimizer.freeze", optimizer<&Optimizer::freeze>, kParameterPatterns, "",
     "Parameters that are not trained, by name, like \"embedding.*\" or \"layers.[0-3].*\""},
    {"optimizer.training_groups", optimizer<&Optimizer::training_groups>, Form{"NAME include=PATTERN,... [exclude=PATTERN,...] [KEY=VALUE ...]", check_training_group}, "",
     "Parameters with a weight_decay or a schedule of their own: a line per group, where KEY is weight_decay or a key of [learning_rate_scheduler]"},

    {"learning_rate_scheduler.learning_rate", schedule<&Schedule::learning_rate>, NumberRange{0, 10, true, false}, "", "The highest learning rate, after the warm-up", kShown},
    {"learning_rate_scheduler.learning_rate_minimum", schedule<&Schedule::learning_rate_minimum>, NumberRange{0, 10}, "", "The learning rate at the end of the decay and after it", kCommon},
    {"learning_rate_scheduler.learning_rate_decay_style", schedule<&Schedule::learning_rate_decay_style>, Choices{{"constant", "linear", "cosine", "warmup-stable-decay"}}, "",
     "How the learning rate falls after the warm-up; warmup-stable-decay keeps it at its highest until the last wsd_decay_steps", kShown},
    {"learning_rate_scheduler.learning_rate_decay_iters", schedule<&Schedule::learning_rate_decay_iters>, kSteps, "steps",
     "Step at which the decay ends, warm-up included; 0 = trainer.train_iterations"},
    {"learning_rate_scheduler.learning_rate_warmup_steps", schedule<&Schedule::learning_rate_warmup_steps>, kSteps, "steps", "Steps in which the learning rate rises from 0", kShown},
    {"learning_rate_scheduler.wsd_decay_steps", schedule<&Schedule::wsd_decay_steps>, kSteps, "steps",
     "Last steps of warmup-stable-decay, in which the learning rate falls to its minimum; 0 = a tenth of all steps"},
    {"learning_rate_scheduler.wsd_decay_style", schedule<&Schedule::wsd_decay_style>, Choices{{"linear", "cosine", "minus-sqrt", "exponential"}}, "",
     "The shape of that fall: 1 - r, (1 + cos(pi r)) / 2, 1 - sqrt(r), or 2 * 0.5^r - 1"},

    {"outer.every", outer<&Outer::every>, IntegerRange{0, 1'000'000}, "steps",
     "Inner steps of each site between two outer ones; 0 = 20, 50 or 100, as topology.gradient_compression says. With one site it averages weights over time (Lookahead)"},
    {"outer.learning_rate", outer<&Outer::learning_rate>, NumberRange{0, 10}, "", "Learning rate of the outer step; 0 = 0.6 for up to two sites, 0.7 for more"},
    {"outer.momentum", outer<&Outer::momentum>, NumberRange{0, 1, false, true}, "", "Momentum of the outer step"},
    {"outer.nesterov", outer<&Outer::nesterov>, {}, "", "Nesterov's momentum instead of the plain one"},
    {"outer.wire", outer<&Outer::wire>, Choices{{"auto", "f32", "bf16", "int8", "e4m3", "e5m2", "e2m1", "e3m0"}}, "",
     "Number format between sites: e4m3 and e5m2 have 8 bits, e2m1 and e3m0 4, and all of these a power of two per block, int8 an f32 scale; auto = by topology.gradient_compression"},
    {"outer.block", outer<&Outer::block>, IntegerRange{16, 4096}, "values", "Values that share a scale; a multiple of 16"},
    {"outer.error_feedback", outer<&Outer::error_feedback>, Choices{{"auto", "on", "off"}}, "",
     "Add the rounding error to the next round: auto = for formats of 4 bits"},
    {"outer.fragments", outer<&Outer::fragments>, IntegerRange{0, 65536}, "",
     "Parts of the model, of about the same size, that are exchanged one after the other within a round; 0 = by topology.gradient_compression, 4 for high (no more than layers), else 1"},
    {"outer.overlap", outer<&Outer::overlap>, IntegerRange{-1, 1'000'000}, "steps",
     "Inner steps that run while a fragment is exchanged; 0 = training waits; -1 = by topology.gradient_compression, 5 for high, else 0"},
    {"outer.mix", outer<&Outer::mix>, NumberRange{-1, 1, false, true}, "",
     "Share of its own weights that a site keeps when it applies an outer step; -1 = 0.5 with overlap, else 0"},
    {"outer.streams", outer<&Outer::streams>, IntegerRange{1, 64}, "connections", "TCP connections between two sites; one does not fill a long link"},
    {"outer.min_sites", outer<&Outer::min_sites>, IntegerRange{0, 1024}, "sites",
     "Least number of sites with which training continues; 0 = half of them, rounded up"},
    {"outer.deadline", outer<&Outer::deadline>, DurationRange{"0s", "24h"}, "",
     "How long a round waits for late sites after the first site is ready; 0s = learned from the last rounds, or ten minutes with equal_steps"},
    {"outer.weight", outer<&Outer::weight>, Choices{{"tokens", "uniform"}}, "", "Weight of a site in the mean: tokens = the number of tokens that it trained on, uniform = the same for all"},
    {"outer.equal_steps", outer<&Outer::equal_steps>, {}, "",
     "Every site does outer.every steps of a round, and the others wait for slow ones, so that the same run has the same losses again; false = slow sites do as many steps as fit into the time of the fastest"},
    {"outer.start_after", outer<&Outer::start_after>, kSteps, "steps", "Plain data-parallel steps over all sites before the first round"},
    {"outer.route", outer<&Outer::route>, Choices{{"direct", "launcher"}}, "",
     "How sites reach each other: direct = TCP between their hosts (outer.port); launcher = through the SSH connections and this machine, no open port is needed"},
    {"outer.port", outer<&Outer::port>, IntegerRange{0, 65535}, "", "TCP port on which site leaders listen (the leaders of a site use consecutive ports, one for each part of the model); of each two sites, one must open it; 0 = any free port"},

    {"lora.rank", lora<&Lora::rank>, IntegerRange{0, 65536}, "", "Rank of the updates; 0 = no LoRA, all parameters are trained"},
    {"lora.alpha", lora<&Lora::alpha>, NumberRange{0, 1e6, true, false}, "", "Scale of an update: alpha / rank"},
    {"lora.modules", lora<&Lora::modules>, kParameterPatterns, "",
     "Matrices that get an update, by name without \".weight\", like \"*.attention.qkv\"; all other parameters are frozen"},

    {"trainer.train_iterations", trainer<&Trainer::train_iterations>, kAtLeastOneStep, "steps", "Optimizer steps of the whole run, those before a resume included", kShown},
    {"trainer.train_epochs", trainer<&Trainer::train_epochs>, IntegerRange{0, 1'000'000}, "passes",
     "Passes over the training data instead of train_iterations, the last step of the last pass included; 0 = train_iterations decides"},
    {"trainer.train_duration", trainer<&Trainer::train_duration>, DurationRange{"0s", "8760h"}, "", "Stop after this much training time, with a checkpoint; 0s = no limit", kCommon},
    {"trainer.seed", trainer<&Trainer::seed>, IntegerRange{0, INT64_MAX}, "", "Decides the initial weights and the order of the data", kCommon},
    {"trainer.device", trainer<&Trainer::device>, Choices{{"auto", "cpu", "cuda"}}, "",
     "Device of the ranks: cuda = one NVIDIA GPU for each rank; auto = cuda if the host has a GPU for each of its ranks and this build has CUDA, else cpu"},
    {"trainer.cuda_graphs", trainer<&Trainer::cuda_graphs>, Choices{{"auto", "off"}}, "",
     "On GPUs: auto = what repeats from step to step is captured once as CUDA graphs and launched as such, where it can be (docs/gpu.md); off = every kernel is launched by itself; the results are bit-identical"},
    {"trainer.threads", trainer<&Trainer::threads>, IntegerRange{0, 4096}, "", "Compute threads per rank; 0 = OMP_NUM_THREADS, the rank's share of its host"},
    {"trainer.save_dir", trainer<&Trainer::save_dir>, kPathForm, "", "Folder of this run's checkpoints; a run resumes from the newest one in it. If all hosts share the folder, every rank reads and writes its part, else rank 0 does. Empty = no checkpoint is written and the trained weights are lost", kShown | kPath},
    {"trainer.save_interval", trainer<&Trainer::save_interval>, kSteps, "steps", "Steps between checkpoints; 0 = only one at the end", kShown},
    {"trainer.keep_last", trainer<&Trainer::keep_last>, IntegerRange{0, 1'000'000}, "checkpoints", "Committed checkpoints that are kept; 0 = all", kCommon},
    {"trainer.load_dir", trainer<&Trainer::load_dir>, kPathForm, "", "Checkpoint, or folder of checkpoints (the newest), to start from with optimizer state and progress, if save_dir has no checkpoint", kPath},
    {"trainer.load_weights_from", trainer<&Trainer::load_weights_from>, kPathForm, "",
     "Checkpoint, or folder of checkpoints (the newest), whose weights are loaded at step 0 with a new optimizer state, if save_dir has no checkpoint", kPath | kCommon},
    {"trainer.async_save", trainer<&Trainer::async_save>, {}, "",
     "Write checkpoints in the background from a copy of the state, except the last one; false, or too little memory for the copy = training waits for each checkpoint"},
    {"trainer.keep_best", trainer<&Trainer::keep_best>, {}, "", "Also keep the checkpoint with the lowest validation loss, in save_dir/best"},
    {"trainer.replica_check_interval", trainer<&Trainer::replica_check_interval>, kSteps, "steps",
     "Steps between bit-by-bit comparisons of the weights (and optimizer states, unless sharded) of the replicas; 0 = never"},
    {"trainer.eval_interval", trainer<&Trainer::eval_interval>, kSteps, "steps", "Steps between validations; 0 = never", kCommon},
    {"trainer.eval_samples", trainer<&Trainer::eval_samples>, IntegerRange{0, 1'000'000'000}, "sequences",
     "Number of sequences of each validation set to score, always the first ones, independent of the number of ranks; 0 = all", kCommon},
    {"trainer.max_consecutive_skips", trainer<&Trainer::max_consecutive_skips>, IntegerRange{1, 1'000'000}, "steps",
     "The run stops after this many skipped steps in a row (gradients that are not finite, or outliers)"},
    {"trainer.on_nonfinite", trainer<&Trainer::on_nonfinite>, Form{"skip | rollback N | stop", check_step_policy}, "",
     "After a step whose loss or gradient is not finite: skip = make no update; rollback N = load a checkpoint at least N steps older and skip the samples since then; stop = end with an error"},
    {"trainer.on_loss_spike", trainer<&Trainer::on_loss_spike>, Form{"ignore | skip | rollback N | stop", check_step_policy}, "",
     "After a step whose loss is loss_spike_ratio times its running mean: ignore, or as for on_nonfinite"},
    {"trainer.loss_spike_ratio", trainer<&Trainer::loss_spike_ratio>, NumberRange{1, 1e6, true, false, true}, "", "A step is a spike if its loss is more than this many times the running mean of the loss (over outlier_window steps); checkpoints of the 10 steps after a skipped spike are suspect"},
    {"trainer.on_replica_mismatch", trainer<&Trainer::on_replica_mismatch>, Form{"stop | rollback N", check_step_policy}, "",
     "When replicas differ (replica_check_interval): stop = end with an error that names the ranks; rollback N = load a checkpoint at least N steps older, from before the last successful comparison, and repeat the steps since then"},
    {"trainer.memory_checkpoint_interval", trainer<&Trainer::memory_checkpoint_interval>, kSteps, "steps",
     "Steps between checkpoints in the memory of the hosts, which a restart loads if they are newer than those in save_dir; each part of the state is kept on two hosts; 0 = none"},
    {"trainer.scrub_interval", trainer<&Trainer::scrub_interval>, DurationRange{"0s", "8760h"}, "",
     "Interval in which the hashes of all committed checkpoints are verified in the background; a damaged one is moved to quarantine/; 0s = never"},

    {"profiler.profile_steps", profiler<&Profiler::profile_steps>, IntegerRange{0, 1'000'000}, "steps", "Steps to profile; 0 = off"},
    {"profiler.profile_start_at_step", profiler<&Profiler::profile_start_at_step>, kAtLeastOneStep, "", "First step to profile"},
    {"profiler.profiler_output", profiler<&Profiler::profiler_output>, kPathForm, "", "Trace file on the ranks' hosts, of several ranks NAME-rank-N.EXT; empty = profile-rank-N.json in the run folder, here", kPath},
};
// clang-format on

}  // namespace

std::span<const Field> training_fields() {
  return kTrainingFields;
}

}  // namespace sortie::config
