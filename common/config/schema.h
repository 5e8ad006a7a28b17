// The typed config of a job: plain structs with defaults, one per TOML section. The field table
// (fields.h) is the only other place that lists the keys; validate.h holds the cross-field rules.
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

/// [runner.ssh]: how hosts are reached. Empty strings mean "as ~/.ssh/config says".
struct SshConfig {
  std::string user;
  std::int64_t port = 0;  // 0 = as ~/.ssh/config says, else 22
  std::string identity_file;
  std::string config_file;       // default ~/.ssh/config
  std::string known_hosts_file;  // default: UserKnownHostsFile, else ~/.ssh/known_hosts
  bool accept_new = false;       // trust and record an unknown host key (a changed one: never)
  Milliseconds resolve_timeout{5000};
  Milliseconds connect_timeout{10000};
  Milliseconds handshake_timeout{10000};
  Milliseconds auth_timeout{10000};
  std::int64_t fanout = 64;          // hosts being signed in to at the same time
  Milliseconds persist{0};           // connections stay for this time after a command; 0 = none do
  std::vector<std::string> command;  // argv of an ssh program to use instead of libssh
  std::string control = "auto";      // auto | no: use OpenSSH masters as ssh_config says
};

/// [runner.network]: on which of the hosts' networks ranks talk to each other.
struct NetworkConfig {
  std::string interface;  // "eth1", "eth*" or "10.1.0.0/16"; empty = the route between the hosts
  std::string tunnel = "none";       // none | wireguard: a mesh over all hosts, for the run
  std::int64_t tunnel_port = 51820;  // UDP
};

/// runner.container.entrypoint when nothing is said: the image's own.
inline constexpr const char* kImageEntrypoint = "(image)";

/// [runner.container]: every rank in a container, when there is an engine. Paths of the job are
/// then those inside it.
struct ContainerConfig {
  std::string engine;            // docker | podman | containerd; empty = bare processes
  std::string image;             // NAME[:TAG] or NAME@sha256:...
  std::string pull = "missing";  // missing | always | never
  std::vector<std::vector<std::string>> mounts;  // {host path, container path, options}
  std::string shm_size;          // of /dev/shm, "16GiB"; empty = the engine's default
  std::string ipc;               // private | host | shareable; empty = as scope needs it
  std::string network = "host";  // host | none | a network of the engine
  std::string gpus = "auto";     // auto | slots | all | none
  std::vector<std::string> devices;
  std::map<std::string, std::string> ulimits = {{"memlock", "-1"}, {"stack", "67108864"}};
  std::vector<std::string> capabilities;  // added
  bool privileged = false;
  std::string user;                                          // empty = who starts the run
  std::string workdir;                                       // empty = the image's
  std::vector<std::string> entrypoint = {kImageEntrypoint};  // before the program; empty = none
  std::map<std::string, std::string> env;
  std::map<std::string, std::string> labels;
  std::vector<std::string> extra_args;  // of the engine's run command
  std::string scope = "host";           // host | rank: one container per host, or per rank
  double cpus = 0;                      // limit of each rank; 0 = none
  std::string memory;                   // limit of each rank, "32GiB"; empty = none
  std::string credentials_file;         // a Docker config.json, for pulls

  bool used() const { return !engine.empty(); }
};

/// Stands for the name of a host in runner.transport.
inline constexpr std::string_view kHostWord = "{host}";

/// [runner]: where and how ranks start.
struct RunnerConfig {
  std::vector<std::string> hosts;    // "gpu-01 slots=4", "h slots=0,2,5", "gpu[01-08] slots=8"
  std::string hosts_file;            // one such line each, '#' comments; excludes hosts
  std::string groups_file;           // what "@NAME" in host lines means; empty = the user's
  std::int64_t default_slots = 1;    // slots of a host line that names none
  bool allow_same_machine = false;   // two host names may be one machine
  std::vector<std::string> program;  // argv of a rank; empty = the sortie-train beside sortie
  std::string work_dir;          // empty = the launcher's; where a host lacks that: the home folder
  std::string master_addr;       // empty = first host's address as the other hosts reach it
  std::int64_t master_port = 0;  // 0 = a free one, held on the first host for the whole run
  std::string devices = "host";  // host | rank | all: what of a host's slots a rank sees
  std::string cpu_binding = "auto";  // auto | none | core | numa: how ranks share a host's cores
  std::map<std::string, std::string> env;         // set for every rank
  std::map<std::string, std::string> secret_env;  // the same; shown and written nowhere (secret.h)
  std::string secrets_file;  // more of those, "NAME=value" lines; readable by its owner alone
  std::vector<std::string> env_passthrough = {"NCCL_*", "UCX_*", "OMPI_MCA_*"};  // name patterns
  std::vector<std::string> stage;  // "path" or "path -> name": put on every host before ranks start
  std::int64_t stage_cache_gib = 100;   // staged files that a host keeps between runs
  std::string mpi = "auto";             // auto | on | off: serve PMIx to the ranks
  Milliseconds grace{10000};            // between TERM and KILL
  Milliseconds startup_timeout{60000};  // of runner, job and ranks, each
  Milliseconds heartbeat_interval{2000};
  Milliseconds heartbeat_timeout{10000};
  std::string on_launcher_loss = "kill";  // kill | hold DURATION
  /// argv of a program that runs a command on "{host}"; empty = SSH. `localhost` needs neither.
  std::vector<std::string> transport;
  NetworkConfig network;
  ContainerConfig container;
  SshConfig ssh;
};

/// [recovery]: what a run does by itself when it fails (docs/recovery.md).
struct RecoveryConfig {
  std::int64_t max_restarts = 0;            // within restart_window; 0 = a failure ends the run
  Milliseconds restart_window{86'400'000};  // older restarts are not counted
  // Failure classes (launcher/recovery/failure_class.h) after which ranks are started again, and
  // those whose restarts count.
  std::vector<std::string> restart_on = {"app", "software", "hardware", "hang", "preempted"};
  std::vector<std::string> counted = {"app", "software", "hang", "oom"};
  std::vector<std::string> restart_exit_codes;  // "75", "64-69": restarted whatever restart_on says
  std::vector<std::string> stop_exit_codes = {"2", "65", "77", "78"};  // never restarted
  Milliseconds backoff{1000};           // before the first restart; doubled for each in a row
  Milliseconds backoff_max{60'000};     // and no longer than this
  Milliseconds healthy_after{600'000};  // an attempt that ran so long ends such a row
  std::int64_t no_progress_limit = 3;   // attempts in a row without a newer committed step; 0 = any
  std::vector<std::string> spares;      // host lines: take the place of hosts that are blamed
  std::int64_t min_hosts = 0;           // fewest hosts to go on with; 0 = as many as at the start
  bool cordon = true;                   // hosts that are blamed twice are used by no run
  std::string progress_file;  // on the first host: its first number is the last committed step
  std::int64_t supervisor_restarts = 10;  // in a row, of a detached run; 0 = none
  // When a run that went on with fewer hosts takes fit ones in again: never | restart | checkpoint.
  std::string grow_at = "restart";
  Milliseconds fit_interval{300'000};  // between two checks of hosts that a run had to leave
  Milliseconds commit_wait{600'000};   // of a planned restart, for a commit that comes by itself
  std::int64_t slow_swaps = 0;         // hosts that are slow and leave for a spare; 0 = named only
  std::int64_t cordon_runs = 3;        // runs with a blame within blame_window; 0 = only this run's
  Milliseconds blame_window{1'209'600'000};  // 14 days
};

/// [watchdog]: how ranks that do nothing any more, or too little, are found.
struct WatchdogConfig {
  bool hangs = true;
  Milliseconds hang_minimum{60'000};      // least limit of a section; the limit is 5 x its p99
  Milliseconds hang_timeout{0};           // limit of every section but the start; 0 = learned
  Milliseconds start_timeout{3'600'000};  // from the ranks' start to their first step; 0 = none
  std::int64_t exempt_steps = 3;          // first steps of an attempt that are not learned from
  Milliseconds dump_timeout{3000};        // for the stacks of all ranks, before they are ended
  double straggler_ratio = 1.15;  // of the median of all hosts; 0 = stragglers are not looked for
  std::int64_t straggler_windows = 10;  // in a row, of ten seconds each
  bool health = true;                   // of the hosts is watched while a run goes on
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
  std::int64_t tensor_parallel_size = 1;    // ranks that share the work of each layer
  bool sequence_parallel = false;           // they share what lies between layers, too
  std::int64_t context_parallel_size = 1;   // ranks that share the tokens of each sequence
  std::int64_t pipeline_parallel_size = 1;  // stages of consecutive layers
  std::int64_t pipeline_interleave = 1;     // parts of the layers that a stage has
  std::string pipeline_schedule = "1f1b";   // 1f1b | zero_bubble
  std::vector<std::string> pipeline_stage_layers = {};  // of each part, upwards; empty = balanced
  std::int64_t expert_parallel_size = 1;                // ranks that have experts of their own
  std::int64_t expert_tensor_parallel_size = 0;         // ranks that share each expert; 0 = derived
  std::string parameter_sharding = "none";       // none | optimizer | full: over the replicas
  std::int64_t micro_batch_size = 1;             // sequences per rank and forward pass
  std::int64_t gradient_accumulation_steps = 0;  // two of these three decide; 0 = derived
  std::int64_t global_batch_size = 0;            // sequences per step over all ranks
  std::string activation_checkpointing_type = "disabled";  // disabled | every_layer
  std::string backend = "auto";  // auto | mpi | nccl: what carries the collectives
  // auto | none | low | medium | high: how little sites send each other, by the defaults of [outer]
  // that each stands for (outer.h); auto = medium where there is more than one site.
  std::string gradient_compression = "auto";
  // Batch ramp-up: from `start` by `increment` sequences up to the global batch size, in equal
  // shares of `samples` trained sequences; 0 = the full batch from the first step on.
  std::int64_t batch_rampup_start = 0;
  std::int64_t batch_rampup_increment = 0;
  std::int64_t batch_rampup_samples = 0;
};

/// [optimizer]: AdamW with decoupled decay on matrices only.
struct OptimizerConfig {
  std::string name = "adamw";  // adamw | demo
  double momentum = 0.999;     // demo: what is left of the momentum after a step
  std::int64_t chunk = 64;     // demo: values per side of a block that is transformed
  std::int64_t top_k = 32;     // demo: coefficients of a block that are sent
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  std::string moments = "f32";  // f32 | bf16: what AdamW's moments are kept in
  double weight_decay = 0.1;
  double gradient_clipping = 1.0;          // global L2 norm; 0 = off
  std::int64_t allreduce_bucket_size = 0;  // f32 elements per bucket; 0: a sixteenth of all
  // Steps that stand out: skipped when so many deviations above the running mean, 0 = never.
  double skip_loss_zscore = 0.0;
  double skip_gradient_norm_zscore = 0.0;
  std::int64_t outlier_window = 128;         // steps that the running mean looks back
  std::vector<std::string> freeze;           // patterns of parameter names that are not trained
  std::vector<std::string> training_groups;  // lines of training_groups.h
};

/// [learning_rate_scheduler]
struct LearningRateSchedulerConfig {
  double learning_rate = 3e-4;
  double learning_rate_minimum = 0.0;
  std::string learning_rate_decay_style =
      "cosine";                                // constant | linear | cosine | warmup-stable-decay
  std::int64_t learning_rate_decay_iters = 0;  // 0 = trainer.train_iterations; includes warm-up
  std::int64_t learning_rate_warmup_steps = 0;
  std::int64_t wsd_decay_steps = 0;        // last steps of the schedule; 0 = a tenth of it
  std::string wsd_decay_style = "linear";  // linear | cosine | minus-sqrt | exponential
};

/// [outer]: training over several sites. What is not set is as topology.gradient_compression says;
/// outer.h has the values that then hold.
struct OuterConfig {
  std::int64_t every = 0;      // inner steps between two outer ones; 0 = by level
  double learning_rate = 0.0;  // 0 = by the number of sites
  double momentum = 0.9;
  bool nesterov = true;
  std::string wire =
      "auto";               // auto | f32 | bf16 | int8 | e4m3 | e5m2 | e2m1 | e3m0; auto = by level
  std::int64_t block = 32;  // values that share a scale
  std::string error_feedback = "auto";  // auto | on | off: send what rounding has lost next time
  std::int64_t fragments = 0;  // parts of the model that are sent one after the other; 0 = by level
  std::int64_t overlap = -1;   // inner steps for which a fragment may be under way; -1 = by level
  double mix = -1.0;           // share of the site's own weights that it keeps; -1 = by level
  std::int64_t streams = 4;    // connections between two sites
  std::int64_t min_sites = 0;  // fewest to go on with; 0 = half of them, rounded up
  Milliseconds deadline{0};    // for sites that are late; 0 = learned
  std::string weight = "tokens";  // tokens | uniform: what a site's change counts
  bool equal_steps = false;       // slow sites, too, do `every` steps of a round
  std::int64_t start_after = 0;   // plain data-parallel steps before the first round
  std::int64_t port = 0;          // that sites listen on; 0 = any free one
  std::string route = "direct";   // direct | launcher: how sites reach each other
};

/// [lora]: low-rank updates beside frozen weights (Hu et al. 2021).
struct LoraConfig {
  std::int64_t rank = 0;                                 // 0 = none
  double alpha = 16.0;                                   // the update counts alpha / rank
  std::vector<std::string> modules = {"*.attention.*"};  // patterns of the names of matrices
};

/// [trainer]
struct TrainerConfig {
  std::int64_t train_iterations = 1000;
  std::int64_t train_epochs = 0;   // passes over the data; 0 = train_iterations decides
  Milliseconds train_duration{0};  // stop after this much training time, 0 = no limit
  std::int64_t seed = 42;
  std::string device = "auto";       // auto | cpu | cuda: what ranks compute on
  std::string cuda_graphs = "auto";  // auto | off: whether GPUs do repeated work as graphs
  std::int64_t threads =
      0;  // compute threads per rank; 0 = OMP_NUM_THREADS (the rank's share of its host)
  std::string save_dir;            // empty = no checkpoints
  std::int64_t save_interval = 0;  // steps; 0 = only at the end
  std::int64_t keep_last = 3;      // committed checkpoints kept; 0 = all
  std::string load_dir;            // start from here; empty = newest in save_dir when there is one
  std::string load_weights_from;   // weights of a fresh run; empty = from the seed
  bool async_save = true;          // write checkpoints beside training
  bool keep_best = true;           // the checkpoint of the lowest validation loss, in save_dir/best
  std::int64_t replica_check_interval = 0;      // steps; 0 = never
  std::int64_t eval_interval = 0;               // steps; 0 = never
  std::int64_t eval_samples = 64;               // of each validation set, from its start; 0 = all
  std::int64_t max_consecutive_skips = 10;      // non-finite steps in a row before giving up
  std::string on_nonfinite = "skip";            // skip | rollback N | stop
  std::string on_loss_spike = "ignore";         // ignore | skip | rollback N | stop
  double loss_spike_ratio = 5.0;                // of the running mean
  std::string on_replica_mismatch = "stop";     // stop | rollback N
  std::int64_t memory_checkpoint_interval = 0;  // steps; 0 = none in the memory of the hosts
  Milliseconds scrub_interval{0};  // between checks of all committed checkpoints; 0 = never
};

/// [profiler]: section times of some steps as a Chrome trace.
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
  std::int64_t num_shared_experts = 0;  // every token passes them; deepseek-v3
  std::int64_t first_dense_layers = 0;  // layers before the first mixture; deepseek-v3
  std::int64_t layer_step = 1;          // layer l is a mixture when step divides l + 1; qwen3-moe
  bool normalize_topk = true;           // qwen3-moe and deepseek-v3; mixtral always does
  double scaling_factor = 1.0;          // deepseek-v3, like the next ones
  std::int64_t num_groups = 1;
  std::int64_t group_topk = 1;
  double bias_update_rate = 0.0;
  double seq_aux_loss_coeff = 0.0;
  double aux_loss_coeff = 0.0;   // mixtral and qwen3-moe
  double capacity_factor = 0.0;  // of an even load of each expert; 0 = experts take every choice
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
  std::string preset;                  // a named shape that the other keys start from
  std::string architecture = "llama";  // see architectures.h
  std::int64_t vocab_size = 256;
  std::int64_t hidden_size = 256;
  std::int64_t num_layers = 4;
  std::int64_t num_attention_heads = 4;
  std::int64_t attention_num_kv_heads = 0;  // 0 = num_attention_heads
  std::int64_t head_dim = 0;                // 0 = hidden_size / num_attention_heads
  std::int64_t ffn_hidden_size = 0;  // 0 = 8/3 hidden rounded up to 64 if gated, else 4 hidden
  std::int64_t sequence_length = 256;
  std::int64_t num_positions = 0;  // longest sequence the model is made for; 0 = sequence_length
  bool weight_tying = true;
  std::vector<std::string> attention_layers;  // "global" | "local", repeated over the layers
  std::int64_t attention_window = 0;          // tokens that a local layer sees
  double rotary_embedding_base = 10000.0;
  double rotary_percentage = 1.0;     // share of head_dim that RoPE turns
  std::string rope_scaling = "none";  // none | linear | llama3 | yarn
  double rope_scaling_factor = 1.0;
  double rope_scaling_low_frequency = 1.0;
  double rope_scaling_high_frequency = 4.0;
  std::int64_t rope_scaling_original_length = 8192;
  double rope_scaling_mscale = 0.0;  // yarn, like the next one
  double rope_scaling_mscale_all_dim = 0.0;
  double norm_epsilon = 1e-5;
  bool parallel_residual = true;         // gpt-neo-x only
  std::int64_t document_end_token = -1;  // attention does not pass it; -1 = none
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
  std::vector<std::string> validation_chat_files;      // the same, to validate on
  bool pack_conversations = true;                      // several of them in a sequence
  std::map<std::string, std::string> validation_sets;  // more of them by name; validation_sets.h
  std::vector<std::string> weights;  // one number per data prefix, or none: as large as they are
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
