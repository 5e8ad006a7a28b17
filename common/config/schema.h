// The typed config of a job: plain structs with defaults, one per TOML section. Only the field
// table (fields.h) lists the keys a second time. The cross-field rules are in validate.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sortie::config {

using Milliseconds = std::chrono::milliseconds;

/// [runner.ssh]: how hosts are reached. An empty string means the value of ~/.ssh/config.
struct SshConfig {
  std::string user;
  std::int64_t port = 0;  // 0 = that of ~/.ssh/config, else 22
  std::string identity_file;
  std::string config_file;       // empty = ~/.ssh/config
  std::string known_hosts_file;  // empty = UserKnownHostsFile, else ~/.ssh/known_hosts
  bool accept_new = false;       // trust and record an unknown host key (never a changed one)
  Milliseconds resolve_timeout{5000};
  Milliseconds connect_timeout{10000};
  Milliseconds handshake_timeout{10000};
  Milliseconds auth_timeout{10000};
  std::int64_t fanout = 64;          // hosts to connect to at the same time
  Milliseconds persist{0};           // idle connections are kept for this time; 0 = not kept
  std::vector<std::string> command;  // argv of an ssh program to use instead of libssh
  std::string control = "auto";      // auto | no: use OpenSSH masters as ssh_config says
};

/// [runner.network]: the network over which ranks communicate.
struct NetworkConfig {
  std::string interface;  // "eth1", "eth*" or "10.1.0.0/16"; empty = the route between the hosts
  std::string tunnel = "none";       // none | wireguard: a mesh over all hosts during the run
  std::int64_t tunnel_port = 51820;  // UDP
};

/// Value of runner.container.entrypoint that stands for the image's own entrypoint; the default.
inline constexpr const char* kImageEntrypoint = "(image)";

/// [runner.container]: ranks run in containers if `engine` is set. Paths of the job are then paths
/// inside the container.
struct ContainerConfig {
  std::string engine;            // docker | podman | containerd; empty = no containers
  std::string image;             // NAME[:TAG] or NAME@sha256:...
  std::string pull = "missing";  // missing | always | never
  std::vector<std::vector<std::string>> mounts;  // {host path, container path, options}
  std::string shm_size;          // size of /dev/shm, "16GiB"; empty = the engine's default
  std::string ipc;               // private | host | shareable; empty = private, one per host
  std::string network = "host";  // host | none | a network of the engine
  std::string gpus = "auto";     // auto | slots | all | none
  std::vector<std::string> devices;
  std::map<std::string, std::string> ulimits = {{"memlock", "-1"}, {"stack", "67108864"}};
  std::vector<std::string> capabilities;  // in addition to the engine's defaults
  bool privileged = false;
  std::string user;                                          // empty = uid and gid of the runner
  std::string workdir;                                       // empty = work_dir, else the image's
  std::vector<std::string> entrypoint = {kImageEntrypoint};  // before the program; empty = none
  std::map<std::string, std::string> env;
  std::map<std::string, std::string> labels;
  std::vector<std::string> extra_args;  // more arguments of the engine's run command
  std::string scope = "host";           // host | rank: one container per host, or per rank
  double cpus = 0;                      // CPU limit of each rank; 0 = none
  std::string memory;                   // memory limit of each rank, "32GiB"; empty = none
  std::string credentials_file;         // a Docker config.json, for pulls

  bool used() const { return !engine.empty(); }
};

/// Placeholder for the name of a host in runner.transport.
inline constexpr std::string_view kHostWord = "{host}";

/// [runner]: where and how ranks run.
struct RunnerConfig {
  std::vector<std::string> hosts;    // "gpu-01 slots=4", "h slots=0,2,5", "gpu[01-08] slots=8"
  std::string hosts_file;            // one such line each, '#' comments; `hosts` must be empty
  std::string groups_file;           // defines "@NAME" in host lines; empty = the user's file
  std::int64_t default_slots = 1;    // slots of a host line without "slots="
  bool allow_same_machine = false;   // two host names may be one machine
  std::vector<std::string> program;  // argv of a rank; empty = sortie-train in sortie's folder
  std::string work_dir;     // must exist on all hosts; empty = the launcher's, else the home folder
  std::string master_addr;  // empty = first host's address, as the other hosts reach it
  std::int64_t master_port = 0;      // 0 = a free one, reserved on the first host for the whole run
  std::string devices = "host";      // host | rank | all: which GPUs of its host a rank sees
  std::string cpu_binding = "auto";  // auto | none | core | numa: how ranks share a host's cores
  std::map<std::string, std::string> env;         // set for every rank
  std::map<std::string, std::string> secret_env;  // the same, but never shown or written (secret.h)
  std::string secrets_file;  // more secrets, "NAME=value" lines; readable only by its owner
  std::vector<std::string> env_passthrough = {"NCCL_*", "UCX_*", "OMPI_MCA_*"};  // name patterns
  std::vector<std::string> stage;  // "path" or "path -> name": copied to hosts before ranks start
  std::int64_t stage_cache_gib = 100;   // size limit of a host's cache of staged files
  std::string mpi = "auto";             // auto | on | off: serve PMIx to the ranks
  Milliseconds grace{10000};            // between SIGTERM and SIGKILL
  Milliseconds startup_timeout{60000};  // for the runner, the job and the ranks, each
  Milliseconds heartbeat_interval{2000};
  Milliseconds heartbeat_timeout{10000};
  std::string on_launcher_loss = "kill";  // kill | hold DURATION
  /// argv of a program that runs a command on "{host}"; empty = SSH. `localhost` uses neither.
  std::vector<std::string> transport;
  NetworkConfig network;
  ContainerConfig container;
  SshConfig ssh;
};

/// [recovery]: what a run does on its own after a failure (docs/recovery.md).
struct RecoveryConfig {
  std::int64_t max_restarts = 0;            // within restart_window; 0 = a failure ends the run
  Milliseconds restart_window{86'400'000};  // older restarts are not counted
  // Failure classes (launcher/recovery/failure_class.h) after which all ranks are started again,
  // and those whose restarts count for max_restarts.
  std::vector<std::string> restart_on = {"app", "software", "hardware", "hang", "preempted"};
  std::vector<std::string> counted = {"app", "software", "hang", "oom"};
  std::vector<std::string> restart_exit_codes;  // "75", "64-69": restart, whatever restart_on says
  std::vector<std::string> stop_exit_codes = {"2", "65", "77", "78"};  // never restart
  Milliseconds backoff{1000};           // before the first restart; doubles with each in a row
  Milliseconds backoff_max{60'000};     // longest backoff
  Milliseconds healthy_after{600'000};  // an attempt of this length resets the backoff
  std::int64_t no_progress_limit = 3;   // attempts in a row without a newer commit; 0 = no limit
  std::vector<std::string> spares;      // host lines: replacements for blamed hosts
  std::int64_t min_hosts = 0;           // fewest hosts to continue with; 0 = all of the start
  bool cordon = true;                   // no run uses hosts that were blamed twice
  std::string progress_file;  // on the first host: its first number is the last committed step
  std::int64_t supervisor_restarts = 10;  // in a row, of a detached run; 0 = none
  // When a run that continued on fewer hosts takes healthy ones back: never | restart | checkpoint.
  std::string grow_at = "restart";
  Milliseconds fit_interval{300'000};  // between two checks of the hosts that a run has lost
  Milliseconds commit_wait{600'000};   // how long a planned restart waits for a regular commit
  std::int64_t slow_swaps = 0;         // slow hosts to replace by spares; 0 = only report them
  std::int64_t cordon_runs = 3;        // cordon after blames by this many runs; 0 = count no runs
  Milliseconds blame_window{1'209'600'000};  // in which these blames count; 14 days
};

/// [watchdog]: detection of ranks that hang or are slow.
struct WatchdogConfig {
  bool hangs = true;
  Milliseconds hang_minimum{60'000};      // minimum limit of a section; the limit is 5 x its p99
  Milliseconds hang_timeout{0};           // limit of every section but the start; 0 = learned
  Milliseconds start_timeout{3'600'000};  // from the ranks' start to their first step; 0 = none
  std::int64_t exempt_steps = 3;          // first steps of an attempt, excluded from learning
  Milliseconds dump_timeout{3000};        // for the stacks of all ranks, before they are killed
  double straggler_ratio = 1.15;        // of the median of all hosts; 0 = do not detect stragglers
  std::int64_t straggler_windows = 10;  // in a row, of ten seconds each
  bool health = true;                   // watch the health of the hosts during a run
};

/// [logger]
struct LoggerConfig {
  std::string log_level = "info";  // debug | info | warning | error
  std::string log_dir;  // state folder; empty = $XDG_STATE_HOME/sortie or ~/.local/state/sortie
  std::int64_t log_interval = 1;        // steps between step lines and metrics
  bool tensorboard = true;              // write TensorBoard events into the run folder
  std::string wandb_mode = "disabled";  // disabled | offline: a run for `wandb sync` in the folder
  std::string wandb_project = "sortie";
  std::string wandb_group;
  std::string wandb_name;  // empty = the id of the first run
  std::vector<std::string> wandb_tags;
};

/// [topology]
struct TopologyConfig {
  std::int64_t data_parallel_size = 0;      // replicas; 0 = from the world size, else checked
  std::int64_t tensor_parallel_size = 1;    // ranks that share the matrices of each layer
  bool sequence_parallel = false;           // these ranks also share the tokens between matrices
  std::int64_t context_parallel_size = 1;   // ranks that share the tokens of each sequence
  std::int64_t pipeline_parallel_size = 1;  // stages of consecutive layers
  std::int64_t pipeline_interleave = 1;     // runs of layers per stage
  std::string pipeline_schedule = "1f1b";   // 1f1b | zero_bubble
  std::vector<std::string> pipeline_stage_layers = {};  // of each run, in order; empty = balanced
  std::int64_t expert_parallel_size = 1;                // ranks that divide the experts among them
  std::int64_t expert_tensor_parallel_size = 0;         // ranks that share each expert; 0 = derived
  std::string parameter_sharding = "none";       // none | optimizer | full: over the replicas
  std::int64_t micro_batch_size = 1;             // sequences per replica and forward pass
  std::int64_t gradient_accumulation_steps = 0;  // two of these three sizes decide; 0 = derived
  std::int64_t global_batch_size = 0;            // sequences per step over all replicas
  std::string activation_checkpointing_type = "disabled";  // disabled | every_layer
  std::string backend = "auto";  // auto | mpi | nccl: library of the collectives
  // auto | none | low | medium | high: how little data sites exchange. Each level is a set of
  // defaults for [outer] (outer.h); auto = medium for more than one site.
  std::string gradient_compression = "auto";
  // Batch ramp-up: from `start` in steps of `increment` sequences to the global batch size, in
  // equal shares of `samples` trained sequences; 0 = the full batch from the first step.
  std::int64_t batch_rampup_start = 0;
  std::int64_t batch_rampup_increment = 0;
  std::int64_t batch_rampup_samples = 0;
};

/// [optimizer]: AdamW or DeMo, with decoupled weight decay on matrices only.
struct OptimizerConfig {
  std::string name = "adamw";  // adamw | demo
  double momentum = 0.999;     // demo: factor of the momentum's decay per step
  std::int64_t chunk = 64;     // demo: longest side of a block that is transformed
  std::int64_t top_k = 32;     // demo: coefficients of a block that are sent
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  std::string moments = "f32";  // f32 | bf16: storage format of AdamW's moments
  double weight_decay = 0.1;
  double gradient_clipping = 1.0;          // global L2 norm; 0 = off
  std::int64_t allreduce_bucket_size = 0;  // f32 elements per bucket; 0 = a sixteenth of all
  // Outliers: a step is skipped this many deviations above the running mean; 0 = never.
  double skip_loss_zscore = 0.0;
  double skip_gradient_norm_zscore = 0.0;
  std::int64_t outlier_window = 128;         // window of the running mean, in steps
  std::vector<std::string> freeze;           // patterns of parameter names that are not trained
  std::vector<std::string> training_groups;  // lines of training_groups.h
};

/// [learning_rate_scheduler]
struct LearningRateSchedulerConfig {
  double learning_rate = 3e-4;
  double learning_rate_minimum = 0.0;
  std::string learning_rate_decay_style =
      "cosine";                                // constant | linear | cosine | warmup-stable-decay
  std::int64_t learning_rate_decay_iters = 0;  // includes warm-up; 0 = trainer.train_iterations
  std::int64_t learning_rate_warmup_steps = 0;
  std::int64_t wsd_decay_steps = 0;        // last steps of the schedule; 0 = a tenth of it
  std::string wsd_decay_style = "linear";  // linear | cosine | minus-sqrt | exponential
};

/// [outer]: training over several sites. Unset values come from topology.gradient_compression;
/// outer.h resolves them.
struct OuterConfig {
  std::int64_t every = 0;      // inner steps between two outer steps; 0 = by level
  double learning_rate = 0.0;  // 0 = by the number of sites
  double momentum = 0.9;
  bool nesterov = true;
  std::string wire =
      "auto";               // auto | f32 | bf16 | int8 | e4m3 | e5m2 | e2m1 | e3m0; auto = by level
  std::int64_t block = 32;  // values that share a scale
  std::string error_feedback = "auto";  // auto | on | off: add the rounding error to the next round
  std::int64_t fragments = 0;     // parts of the model that are exchanged in turn; 0 = by level
  std::int64_t overlap = -1;      // inner steps during the exchange of a fragment; -1 = by level
  double mix = -1.0;              // share of its own weights that a site keeps; -1 = by level
  std::int64_t streams = 4;       // connections between two sites
  std::int64_t min_sites = 0;     // fewest sites to continue with; 0 = half of them, rounded up
  Milliseconds deadline{0};       // for late sites; 0 = learned
  std::string weight = "tokens";  // tokens | uniform: weight of a site in the mean
  bool equal_steps = false;       // slow sites also do `every` steps per round
  std::int64_t start_after = 0;   // plain data-parallel steps before the first round
  std::int64_t port = 0;          // on which sites listen; 0 = any free one
  std::string route = "direct";   // direct | launcher: how sites reach each other
};

/// [lora]: low-rank updates of frozen weights (Hu et al. 2021).
struct LoraConfig {
  std::int64_t rank = 0;                                 // 0 = no LoRA
  double alpha = 16.0;                                   // an update is scaled by alpha / rank
  std::vector<std::string> modules = {"*.attention.*"};  // patterns of names of matrices
};

/// [trainer]
struct TrainerConfig {
  std::int64_t train_iterations = 1000;
  std::int64_t train_epochs = 0;   // passes over the data; 0 = train_iterations decides
  Milliseconds train_duration{0};  // stop after this much training time; 0 = no limit
  std::int64_t seed = 42;
  std::string device = "auto";       // auto | cpu | cuda: device of the ranks
  std::string cuda_graphs = "auto";  // auto | off: whether GPUs run repeated work as CUDA graphs
  std::int64_t threads =
      0;  // compute threads per rank; 0 = OMP_NUM_THREADS (the rank's share of its host)
  std::string save_dir;            // empty = no checkpoints
  std::int64_t save_interval = 0;  // steps; 0 = only at the end
  std::int64_t keep_last = 3;      // committed checkpoints to keep; 0 = all
  std::string load_dir;            // start from here; empty = newest in save_dir if any
  std::string load_weights_from;   // initial weights; empty = random, from the seed
  bool async_save = true;          // write checkpoints in the background
  bool keep_best = true;  // also keep the one with the lowest validation loss, in save_dir/best
  std::int64_t replica_check_interval = 0;      // steps; 0 = never
  std::int64_t eval_interval = 0;               // steps; 0 = never
  std::int64_t eval_samples = 64;               // first ones of each validation set; 0 = all
  std::int64_t max_consecutive_skips = 10;      // skipped steps in a row before the run stops
  std::string on_nonfinite = "skip";            // skip | rollback N | stop
  std::string on_loss_spike = "ignore";         // ignore | skip | rollback N | stop
  double loss_spike_ratio = 5.0;                // spike: loss over running mean
  std::string on_replica_mismatch = "stop";     // stop | rollback N
  std::int64_t memory_checkpoint_interval = 0;  // steps; 0 = none in the memory of the hosts
  Milliseconds scrub_interval{0};  // between checks of all committed checkpoints; 0 = never
};

/// [profiler]: section times of some steps, as a Chrome trace.
struct ProfilerConfig {
  std::int64_t profile_steps = 0;  // 0 = off
  std::int64_t profile_start_at_step = 10;
  std::string profiler_output;  // empty = profile-rank-N.json in the rank's work folder
};

/// [model.moe]: mixtral, qwen3-moe and deepseek-v3
struct MoeConfig {
  std::int64_t num_experts = 8;
  std::int64_t topk = 2;
  std::int64_t ffn_hidden_size = 0;     // of an expert; 0 = model.ffn_hidden_size
  std::int64_t num_shared_experts = 0;  // process every token; deepseek-v3
  std::int64_t first_dense_layers = 0;  // layers before the first mixture; deepseek-v3
  std::int64_t layer_step = 1;          // every layer_step-th layer is a mixture; qwen3-moe
  bool normalize_topk = true;           // qwen3-moe and deepseek-v3; mixtral always does
  double scaling_factor = 1.0;          // this and the next four: deepseek-v3
  std::int64_t num_groups = 1;
  std::int64_t group_topk = 1;
  double bias_update_rate = 0.0;
  double seq_aux_loss_coeff = 0.0;
  double aux_loss_coeff = 0.0;   // mixtral and qwen3-moe
  double capacity_factor = 0.0;  // limit in shares of an even load of an expert; 0 = no limit
};

/// [model.mla]: deepseek-v3
struct MlaConfig {
  std::int64_t q_lora_rank = 0;  // 0 = queries from the hidden state directly
  std::int64_t kv_lora_rank = 512;
  std::int64_t qk_nope_head_dim = 128;
  std::int64_t qk_rope_head_dim = 64;
  std::int64_t v_head_dim = 128;
};

/// [model.mtp]: deepseek-v3
struct MtpConfig {
  std::int64_t num_layers = 0;  // tokens predicted beyond the next one
  double loss_coeff = 0.3;
};

/// [model]
struct ModelConfig {
  std::string preset;                  // a named shape: defaults of the other keys
  std::string architecture = "llama";  // see architectures.h
  std::int64_t vocab_size = 256;
  std::int64_t hidden_size = 256;
  std::int64_t num_layers = 4;
  std::int64_t num_attention_heads = 4;
  std::int64_t attention_num_kv_heads = 0;  // 0 = num_attention_heads
  std::int64_t head_dim = 0;                // 0 = hidden_size / num_attention_heads
  std::int64_t ffn_hidden_size = 0;  // 0 = 8/3 hidden rounded up to 64 if gated, else 4 hidden
  std::int64_t sequence_length = 256;
  std::int64_t num_positions = 0;  // longest sequence of the model; 0 = sequence_length
  bool weight_tying = true;
  std::vector<std::string> attention_layers;  // "global" | "local", repeated over the layers
  std::int64_t attention_window = 0;          // tokens that a local layer attends to
  double rotary_embedding_base = 10000.0;
  double rotary_percentage = 1.0;     // share of head_dim that RoPE rotates
  std::string rope_scaling = "none";  // none | linear | llama3 | yarn
  double rope_scaling_factor = 1.0;
  double rope_scaling_low_frequency = 1.0;
  double rope_scaling_high_frequency = 4.0;
  std::int64_t rope_scaling_original_length = 8192;
  double rope_scaling_mscale = 0.0;  // this and the next one: yarn
  double rope_scaling_mscale_all_dim = 0.0;
  double norm_epsilon = 1e-5;
  bool parallel_residual = true;         // gpt-neo-x only
  std::int64_t document_end_token = -1;  // attention does not cross it; -1 = none
  bool reset_positions = false;          // each document's positions start at 0
  double embedding_dropout = 0.0;
  double attention_dropout = 0.0;
  double residual_dropout = 0.0;
  double init_std = 0.02;
  std::string precision = "auto";       // auto | bf16 | f32 | fp8
  std::string fp8_scaling = "current";  // current | delayed
  MoeConfig moe;
  MlaConfig mla;
  MtpConfig mtp;
};

/// [data]
struct DataConfig {
  std::vector<std::string> data_prefixes;  // PREFIX of PREFIX.bin and PREFIX.idx
  std::vector<std::string> validation_data_prefixes;
  std::vector<std::string> chat_files;  // JSONL of conversations, instead of data_prefixes
  std::vector<std::string> validation_chat_files;      // the same for validation
  bool pack_conversations = true;                      // several conversations per sequence
  std::map<std::string, std::string> validation_sets;  // more sets, by name; validation_sets.h
  std::vector<std::string> weights;  // one number per data prefix; empty = concatenate the files
  std::string sampler = "sortie";    // sortie | megatron | scaling: the order of training samples
  std::string tokenizer;  // byte | sentencepiece:FILE | hf:FILE; empty = that of the token files
};

struct JobConfig {
  RunnerConfig runner;
  RecoveryConfig recovery;
  WatchdogConfig watchdog;
  LoggerConfig logger;
  TopologyConfig topology;
  OptimizerConfig optimizer;
  LearningRateSchedulerConfig learning_rate_scheduler;
  OuterConfig outer;
  LoraConfig lora;
  TrainerConfig trainer;
  ProfilerConfig profiler;
  ModelConfig model;
  DataConfig data;
};

}  // namespace sortie::config
