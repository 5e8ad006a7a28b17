#include "common/config/fields.h"

#include <algorithm>

#include "common/config/forms.h"
#include "common/config/stage.h"

namespace sortie::config {
namespace {

// One per section: the address of a member, as Slot.
template <auto M>
Slot runner(JobConfig& job) {
  return &(job.runner.*M);
}
template <auto M>
Slot network(JobConfig& job) {
  return &(job.runner.network.*M);
}
template <auto M>
Slot ssh(JobConfig& job) {
  return &(job.runner.ssh.*M);
}
template <auto M>
Slot logger(JobConfig& job) {
  return &(job.logger.*M);
}
template <auto M>
Slot topology(JobConfig& job) {
  return &(job.topology.*M);
}
template <auto M>
Slot optimizer(JobConfig& job) {
  return &(job.optimizer.*M);
}
template <auto M>
Slot schedule(JobConfig& job) {
  return &(job.learning_rate_scheduler.*M);
}
template <auto M>
Slot trainer(JobConfig& job) {
  return &(job.trainer.*M);
}
template <auto M>
Slot profiler(JobConfig& job) {
  return &(job.profiler.*M);
}
template <auto M>
Slot model(JobConfig& job) {
  return &(job.model.*M);
}
template <auto M>
Slot data(JobConfig& job) {
  return &(job.data.*M);
}

using Runner = RunnerConfig;
using Network = NetworkConfig;
using Ssh = SshConfig;
using Logger = LoggerConfig;
using Topology = TopologyConfig;
using Optimizer = OptimizerConfig;
using Schedule = LearningRateSchedulerConfig;
using Trainer = TrainerConfig;
using Profiler = ProfilerConfig;
using Model = ModelConfig;
using Data = DataConfig;

constexpr std::int64_t kTrillion = 1'000'000'000'000;
constexpr std::int64_t kMaxInt32 = 2'147'483'647;
const IntegerRange kSteps{0, kTrillion};
const IntegerRange kAtLeastOneStep{1, kTrillion};
const DurationRange kConnectStage{"10ms", "1h"};
const Form kPathForm{"a path", check_path};

const Section kSections[] = {
    {"runner", "Where and how ranks start"},
    {"runner.network", "On which of the hosts' networks ranks talk to each other"},
    {"runner.ssh", "How hosts are reached; what is not set is as ~/.ssh/config says"},
    {"logger", "What a run leaves behind"},
    {"topology", "How a batch is spread over the ranks"},
    {"optimizer", "AdamW with decoupled decay on matrices only"},
    {"learning_rate_scheduler", "The learning rate of each step"},
    {"trainer", "Length of the run, checkpoints, validation"},
    {"profiler", "Times of the sections of some steps, as a Chrome trace"},
    {"model", "The shape of the transformer"},
    {"data", "Token files and the tokenizer"},
};

// clang-format off
const Field kFields[] = {
    {"runner.hosts", runner<&Runner::hosts>, Form{"NAME [slots=N | slots=A,B,...]", check_host_item}, "",
     "Hosts in rank order, like \"gpu-01 slots=4\", \"h slots=0,2,5\", \"gpu[01-08] slots=8\" or \"@gpu,!gpu07\"; with no hosts and no hosts_file the job runs on this machine", kShown},
    {"runner.hosts_file", runner<&Runner::hosts_file>, kPathForm, "",
     "File with one such host line per line and # comments, instead of hosts", kPath},
    {"runner.groups_file", runner<&Runner::groups_file>, kPathForm, "",
     "TOML file of groups, gpu = \"gpu[01-08]\", that host lines name as @gpu; empty = $XDG_CONFIG_HOME/sortie/groups.toml, else ~/.config/sortie/groups.toml", kPath},
    {"runner.default_slots", runner<&Runner::default_slots>, IntegerRange{1, 4096}, "",
     "Slots (ranks) of a host whose line names none"},
    {"runner.program", runner<&Runner::program>, Form{"argv", check_any}, "",
     "Program and arguments of a rank; empty = the sortie-train beside sortie"},
    {"runner.work_dir", runner<&Runner::work_dir>, kPathForm, "",
     "Working folder of the ranks; empty = the launcher's; a host without that folder uses the home folder", kPath},
    {"runner.master_addr", runner<&Runner::master_addr>, Form{"a host name or address", check_address}, "",
     "MASTER_ADDR of the ranks; empty = the first host's address as the other hosts reach it"},
    {"runner.master_port", runner<&Runner::master_port>, IntegerRange{0, 65535}, "",
     "MASTER_PORT of the ranks; 0 = one that is free on the first host and that no other job of Sortie has there"},
    {"runner.devices", runner<&Runner::devices>, Choices{{"host", "rank", "all"}}, "",
     "GPUs that a rank sees: host = those of all slots of its host, so that LOCAL_RANK counts them as torchrun's scripts expect; "
     "rank = that of its own slot alone; all = no variable is set"},
    {"runner.cpu_binding", runner<&Runner::cpu_binding>, Choices{{"auto", "none", "core", "numa"}}, "",
     "CPUs of a rank: core = its share of the host's cores, within a NUMA node and near its GPU where that can be; numa = whole NUMA nodes; "
     "auto = core, but a rank alone on its host has all; with more ranks than cores nobody is bound"},
    {"runner.env", runner<&Runner::env>, Form{"NAME = \"value\"", check_env_name}, "",
     "Environment variables set for every rank; the values of *_TOKEN, *_KEY, *_SECRET and *PASSWORD* are secrets like those of secret_env", kMayHoldSecrets},
    {"runner.secret_env", runner<&Runner::secret_env>, Form{"NAME = \"value\"", check_env_name}, "",
     "Environment variables of every rank whose values are shown and written nowhere; \"(secret)\" = the value is in secrets_file or in sortie's own environment", kSecrets | kMayHoldSecrets},
    {"runner.secrets_file", runner<&Runner::secrets_file>, kPathForm, "",
     "File with more such variables on the launcher's machine, NAME=value lines and # comments, readable by its owner alone", kPath},
    {"runner.env_passthrough", runner<&Runner::env_passthrough>, Form{"name patterns", check_env_pattern}, "",
     "Variables of the launcher's environment that every rank gets, * = any characters"},
    {"runner.stage", runner<&Runner::stage>, Form{"path, or path -> name", check_stage_item}, "",
     "Files and folders that every host gets before ranks start; ranks find them in SORTIE_STAGE, written {stage} in program, env and data paths", kPath},
    {"runner.stage_cache_gib", runner<&Runner::stage_cache_gib>, IntegerRange{0, 1'000'000}, "",
     "Size in GiB down to which a host removes staged files of earlier runs, the longest unused first"},
    {"runner.mpi", runner<&Runner::mpi>, Choices{{"auto", "on", "off"}}, "",
     "Serve PMIx to the ranks, so that MPI programs start without mpirun: auto = where the host has libpmix, on = required"},
    {"runner.grace", runner<&Runner::grace>, DurationRange{"0s", "1h"}, "",
     "Time between TERM and KILL when ranks are stopped"},
    {"runner.startup_timeout", runner<&Runner::startup_timeout>, DurationRange{"1s", "1h"}, "",
     "Time from connected to every rank started, per host"},
    {"runner.heartbeat_interval", runner<&Runner::heartbeat_interval>, DurationRange{"50ms", "10m"}, "",
     "Time between signs of life of launcher and runners"},
    {"runner.heartbeat_timeout", runner<&Runner::heartbeat_timeout>, DurationRange{"100ms", "1h"}, "",
     "Silence after which a host counts as lost; more than twice heartbeat_interval"},
    {"runner.on_launcher_loss", runner<&Runner::on_launcher_loss>, Form{"kill | hold DURATION", check_launcher_loss}, "",
     "What a host does when its launcher is gone: kill its ranks, or hold them so long for `sortie attach --adopt`"},

    {"runner.network.interface", network<&Network::interface>, Form{"NAME, name pattern or CIDR", check_interface}, "",
     "Network of MASTER_ADDR, NCCL, Gloo and Open MPI, like \"eth1\", \"ib*\" or \"10.1.0.0/16\"; every host must have it; empty = as the hosts reach each other"},

    {"runner.ssh.user", ssh<&Ssh::user>, Form{"a login name", check_user}, "", "Login name on the hosts"},
    {"runner.ssh.port", ssh<&Ssh::port>, IntegerRange{0, 65535}, "", "Port of sshd; 0 = as ~/.ssh/config says, else 22"},
    {"runner.ssh.identity_file", ssh<&Ssh::identity_file>, kPathForm, "", "Private key to log in with, before those of ~/.ssh/config", kPath},
    {"runner.ssh.config_file", ssh<&Ssh::config_file>, kPathForm, "", "OpenSSH client config to honour; empty = ~/.ssh/config", kPath},
    {"runner.ssh.known_hosts_file", ssh<&Ssh::known_hosts_file>, kPathForm, "",
     "Host keys that are trusted; empty = UserKnownHostsFile of the config, else ~/.ssh/known_hosts", kPath},
    {"runner.ssh.accept_new", ssh<&Ssh::accept_new>, {}, "", "Trust and record the key of a host that is not known yet; a changed key is always refused"},
    {"runner.ssh.resolve_timeout", ssh<&Ssh::resolve_timeout>, kConnectStage, "", "Deadline for the name of a host to resolve"},
    {"runner.ssh.connect_timeout", ssh<&Ssh::connect_timeout>, kConnectStage, "", "Deadline for the TCP connection to a host"},
    {"runner.ssh.handshake_timeout", ssh<&Ssh::handshake_timeout>, kConnectStage, "", "Deadline for the SSH handshake and the host key check"},
    {"runner.ssh.auth_timeout", ssh<&Ssh::auth_timeout>, kConnectStage, "", "Deadline for authentication"},
    {"runner.ssh.fanout", ssh<&Ssh::fanout>, IntegerRange{1, 4096}, "hosts",
     "Hosts that are being signed in to at the same time; one that does not answer counts no more after a second"},
    {"runner.ssh.command", ssh<&Ssh::command>, Form{"argv", check_any}, "",
     "An ssh program and its options, like [\"ssh\", \"-o\", \"BatchMode=yes\"], to reach the hosts with; empty = Sortie's own connections"},

    {"logger.log_level", logger<&Logger::log_level>, Choices{{"debug", "info", "warning", "error"}}, "", "Least severe message that is logged"},
    {"logger.log_dir", logger<&Logger::log_dir>, kPathForm, "",
     "State folder, with a folder runs/ID per run; empty = $XDG_STATE_HOME/sortie, else ~/.local/state/sortie", kPath},
    {"logger.log_interval", logger<&Logger::log_interval>, kAtLeastOneStep, "steps", "Steps between step lines and metrics"},
    {"logger.tensorboard", logger<&Logger::tensorboard>, {}, "", "Write TensorBoard events into the run folder"},

    {"topology.data_parallel_size", topology<&Topology::data_parallel_size>, IntegerRange{0, 1 << 28}, "ranks",
     "Replicas of the model; 0 = the number of ranks, another value is checked against it"},
    {"topology.micro_batch_size", topology<&Topology::micro_batch_size>, IntegerRange{0, 1 << 20}, "sequences",
     "Sequences per rank and forward pass; 0 = from the two keys below", kShown},
    {"topology.gradient_accumulation_steps", topology<&Topology::gradient_accumulation_steps>, IntegerRange{0, 1 << 20}, "micro-batches",
     "Micro-batches per rank and optimizer step; 0 = from global_batch_size, else 1"},
    {"topology.global_batch_size", topology<&Topology::global_batch_size>, IntegerRange{0, kTrillion}, "sequences",
     "Sequences per optimizer step over all ranks = micro_batch_size * gradient_accumulation_steps * ranks, exactly; 0 = from those"},
    {"topology.activation_checkpointing_type", topology<&Topology::activation_checkpointing_type>, Choices{{"disabled", "every_layer"}}, "",
     "every_layer keeps only each layer's input and computes the rest again in the backward pass: less memory, more time"},

    {"optimizer.beta1", optimizer<&Optimizer::beta1>, NumberRange{0, 1, false, true}, "", "Decay of the mean of the gradients"},
    {"optimizer.beta2", optimizer<&Optimizer::beta2>, NumberRange{0, 1, false, true}, "", "Decay of the mean of the squared gradients"},
    {"optimizer.eps", optimizer<&Optimizer::eps>, NumberRange{0, 1, true, false}, "", "Added to the root of the mean of the squared gradients"},
    {"optimizer.weight_decay", optimizer<&Optimizer::weight_decay>, NumberRange{0, 10}, "", "Decoupled decay of matrices, times the learning rate per step"},
    {"optimizer.gradient_clipping", optimizer<&Optimizer::gradient_clipping>, NumberRange{0, 1e6}, "", "Largest global L2 norm of the gradients; 0 = off"},
    {"optimizer.allreduce_bucket_size", optimizer<&Optimizer::allreduce_bucket_size>, IntegerRange{1, kMaxInt32}, "f32 elements",
     "Gradients that are reduced together while the backward pass goes on"},

    {"learning_rate_scheduler.learning_rate", schedule<&Schedule::learning_rate>, NumberRange{0, 10, true, false}, "", "The highest learning rate, after the warm-up", kShown},
    {"learning_rate_scheduler.learning_rate_minimum", schedule<&Schedule::learning_rate_minimum>, NumberRange{0, 10}, "", "The learning rate at the end of the decay and after it"},
    {"learning_rate_scheduler.learning_rate_decay_style", schedule<&Schedule::learning_rate_decay_style>, Choices{{"constant", "linear", "cosine"}}, "", "How the learning rate falls after the warm-up", kShown},
    {"learning_rate_scheduler.learning_rate_decay_iters", schedule<&Schedule::learning_rate_decay_iters>, kSteps, "steps",
     "Step at which the decay ends, warm-up included; 0 = trainer.train_iterations"},
    {"learning_rate_scheduler.learning_rate_warmup_steps", schedule<&Schedule::learning_rate_warmup_steps>, kSteps, "steps", "Steps in which the learning rate rises from 0", kShown},

    {"trainer.train_iterations", trainer<&Trainer::train_iterations>, kAtLeastOneStep, "steps", "Optimizer steps of the whole run, those before a resume included", kShown},
    {"trainer.train_duration", trainer<&Trainer::train_duration>, DurationRange{"0s", "8760h"}, "", "Stop after this much training time, with a checkpoint; 0s = no limit"},
    {"trainer.seed", trainer<&Trainer::seed>, IntegerRange{0, INT64_MAX}, "", "Decides the initial weights and the order of the data"},
    {"trainer.threads", trainer<&Trainer::threads>, IntegerRange{0, 4096}, "", "Compute threads per rank; 0 = OMP_NUM_THREADS, the rank's share of its host"},
    {"trainer.save_dir", trainer<&Trainer::save_dir>, kPathForm, "", "Folder of the checkpoints, the same on every host; empty = none are written", kShown | kPath},
    {"trainer.save_interval", trainer<&Trainer::save_interval>, kSteps, "steps", "Steps between checkpoints; 0 = only one at the end", kShown},
    {"trainer.keep_last", trainer<&Trainer::keep_last>, IntegerRange{0, 1'000'000}, "checkpoints", "Committed checkpoints that are kept; 0 = all"},
    {"trainer.load_dir", trainer<&Trainer::load_dir>, kPathForm, "", "Checkpoint, or folder of checkpoints, to start from; empty = the newest in save_dir when there is one", kPath},
    {"trainer.eval_interval", trainer<&Trainer::eval_interval>, kSteps, "steps", "Steps between validations; 0 = never"},
    {"trainer.eval_iterations", trainer<&Trainer::eval_iterations>, IntegerRange{1, 1'000'000'000}, "micro-batches", "Validation micro-batches per rank"},
    {"trainer.max_consecutive_skips", trainer<&Trainer::max_consecutive_skips>, IntegerRange{1, 1'000'000}, "steps",
     "Steps in a row that may be skipped for non-finite gradients before the run gives up"},

    {"profiler.profile_steps", profiler<&Profiler::profile_steps>, IntegerRange{0, 1'000'000}, "steps", "Steps to profile; 0 = off"},
    {"profiler.profile_start_at_step", profiler<&Profiler::profile_start_at_step>, kAtLeastOneStep, "", "First step to profile"},
    {"profiler.profiler_output", profiler<&Profiler::profiler_output>, kPathForm, "", "Trace file to write; empty = profile-rank-N.json in the run folder, on rank N's host", kPath},

    {"model.architecture", model<&Model::architecture>, Choices{{"llama", "gpt-neo-x"}}, "",
     "llama: RMSNorm, RoPE, SwiGLU, grouped-query attention; gpt-neo-x: LayerNorm, partial RoPE, GELU, parallel residual", kShown},
    {"model.vocab_size", model<&Model::vocab_size>, IntegerRange{1, kMaxInt32}, "tokens", "Token ids are 0 to vocab_size - 1", kShown},
    {"model.hidden_size", model<&Model::hidden_size>, IntegerRange{1, 1 << 20}, "", "Width of the residual stream", kShown},
    {"model.num_layers", model<&Model::num_layers>, IntegerRange{1, 65536}, "", "Transformer blocks", kShown},
    {"model.num_attention_heads", model<&Model::num_attention_heads>, IntegerRange{1, 65536}, "", "Query heads per layer", kShown},
    {"model.attention_num_kv_heads", model<&Model::attention_num_kv_heads>, IntegerRange{0, 65536}, "", "Key and value heads per layer; 0 = num_attention_heads"},
    {"model.head_dim", model<&Model::head_dim>, IntegerRange{0, 65536}, "", "Width of a head; 0 = hidden_size / num_attention_heads"},
    {"model.ffn_hidden_size", model<&Model::ffn_hidden_size>, IntegerRange{0, 1 << 24}, "",
     "Inner width of the MLP; 0 = 8/3 hidden_size rounded up to a multiple of 64 for llama, 4 hidden_size for gpt-neo-x"},
    {"model.sequence_length", model<&Model::sequence_length>, IntegerRange{1, 1 << 24}, "tokens", "Tokens per sequence", kShown},
    {"model.weight_tying", model<&Model::weight_tying>, {}, "", "Use the embedding matrix as output matrix too"},
    {"model.rotary_embedding_base", model<&Model::rotary_embedding_base>, NumberRange{1, 1e12, true, false}, "", "Base of the RoPE frequencies"},
    {"model.rotary_percentage", model<&Model::rotary_percentage>, NumberRange{0, 1, true, false}, "", "Share of head_dim that RoPE turns"},
    {"model.norm_epsilon", model<&Model::norm_epsilon>, NumberRange{0, 1, true, false}, "", "Added to the variance in RMSNorm and LayerNorm"},
    {"model.parallel_residual", model<&Model::parallel_residual>, {}, "", "Attention and MLP read the same input; gpt-neo-x only"},
    {"model.init_std", model<&Model::init_std>, NumberRange{0, 10}, "", "Standard deviation of the initial weights"},
    {"model.precision", model<&Model::precision>, Choices{{"auto", "bf16", "f32"}}, "", "Of the matrix products: auto = bf16 where the CPU multiplies it, else f32"},

    {"data.data_prefixes", data<&Data::data_prefixes>, Form{"paths without .bin and .idx", check_data_prefix}, "",
     "Token files to train on: PREFIX of PREFIX.bin and PREFIX.idx, the same path on every host", kShown | kPath},
    {"data.validation_data_prefixes", data<&Data::validation_data_prefixes>, Form{"paths without .bin and .idx", check_data_prefix}, "",
     "Token files to validate on", kShown | kPath},
    {"data.weights", data<&Data::weights>, Form{"numbers above 0", check_weight}, "",
     "Share of the training samples that each of data_prefixes gives, in their order, as in [\"0.7\", \"0.3\"]; empty = all of them are one set"},
    {"data.sampler", data<&Data::sampler>, Choices{{"sortie", "megatron"}}, "",
     "Order of training samples. sortie: every epoch in an order of its own; megatron: the samples and the order of Megatron's GPTDataset and BlendedDataset for the same seed and number of samples"},
    {"data.tokenizer", data<&Data::tokenizer>, Form{"byte | sentencepiece:FILE | hf:FILE", check_tokenizer}, "",
     "Tokenizer of the token files, for samples and checks; hf: a tokenizer.json", kPath},
};
// clang-format on

}  // namespace

std::span<const Field> fields() {
  return kFields;
}

std::span<const Section> sections() {
  return kSections;
}

const Field* find_field(std::string_view key) {
  const auto* found = std::ranges::find(kFields, key, &Field::key);
  return found == std::end(kFields) ? nullptr : found;
}

}  // namespace sortie::config
