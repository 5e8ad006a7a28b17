// Keys of [runner], [model] and [data], and all keys in the order of the sections.
#include "common/config/fields.h"

#include <algorithm>

#include "common/config/architectures.h"
#include "common/config/field_forms.h"
#include "common/config/forms.h"
#include "common/config/stage.h"

namespace sortie::config {
namespace {

template <auto M>
constexpr auto runner = member<&JobConfig::runner, M>;
template <auto M>
constexpr auto network = member<&JobConfig::runner, &RunnerConfig::network, M>;
template <auto M>
constexpr auto ssh = member<&JobConfig::runner, &RunnerConfig::ssh, M>;
template <auto M>
constexpr auto model = member<&JobConfig::model, M>;
template <auto M>
constexpr auto moe = member<&JobConfig::model, &ModelConfig::moe, M>;
template <auto M>
constexpr auto mla = member<&JobConfig::model, &ModelConfig::mla, M>;
template <auto M>
constexpr auto mtp = member<&JobConfig::model, &ModelConfig::mtp, M>;
template <auto M>
constexpr auto data = member<&JobConfig::data, M>;

using Runner = RunnerConfig;
using Network = NetworkConfig;
using Ssh = SshConfig;
using Model = ModelConfig;
using Moe = MoeConfig;
using Mla = MlaConfig;
using Mtp = MtpConfig;
using Data = DataConfig;

const DurationRange kConnectStage{"10ms", "1h"};

const Section kSections[] = {
    {"runner", "Where and how ranks start"},
    {"runner.network", "Network for communication between ranks"},
    {"runner.container",
     "Ranks in containers, if engine is set; the paths of the job are then paths in the "
     "container"},
    {"runner.ssh", "SSH connections to hosts; defaults are from ~/.ssh/config"},
    {"recovery", "Automatic restarts after failures"},
    {"watchdog", "Detection of hung ranks and slow hosts"},
    {"logger", "Logs and metrics of a run"},
    {"topology", "How the model and the batch are divided among the ranks"},
    {"optimizer", "AdamW or DeMo; weight decay is decoupled and applies to matrices only"},
    {"learning_rate_scheduler", "The learning rate of each step"},
    {"outer",
     "Training over several sites (site=NAME in host lines) on slow links; defaults depend on "
     "topology.gradient_compression"},
    {"lora", "Fine-tuning with low-rank updates; the weights themselves are frozen"},
    {"trainer", "Length of the run, checkpoints, validation"},
    {"profiler", "Times of the sections of some steps, as a Chrome trace"},
    {"model", "The shape of the transformer"},
    {"model.moe", "Mixtures of experts, of mixtral, qwen3-moe and deepseek-v3"},
    {"model.mla", "Latent attention of deepseek-v3"},
    {"model.mtp", "Multi-token prediction of deepseek-v3"},
    {"data", "Token files and the tokenizer"},
};

// clang-format off
const Field kFields[] = {
    {"runner.hosts", runner<&Runner::hosts>, Form{"NAME [slots=N | slots=A,B,...] [site=NAME]", check_host_item}, "",
     "Hosts in rank order, like \"gpu-01 slots=4\", \"h slots=0,2,5\", \"gpu[01-08] slots=8\" or \"@gpu,!gpu07\"; with no hosts and no hosts_file the job runs on this machine", kShown},
    {"runner.hosts_file", runner<&Runner::hosts_file>, kPathForm, "",
     "File with one host line per line and # comments, instead of hosts", kPath},
    {"runner.groups_file", runner<&Runner::groups_file>, kPathForm, "",
     "TOML file of groups, gpu = \"gpu[01-08]\", that host lines name as @gpu; empty = $XDG_CONFIG_HOME/sortie/groups.toml, else ~/.config/sortie/groups.toml", kPath | kUser},
    {"runner.default_slots", runner<&Runner::default_slots>, IntegerRange{1, 4096}, "",
     "Slots (ranks) of a host whose line has no slots=", kCommon},
    {"runner.allow_same_machine", runner<&Runner::allow_same_machine>, {}, "",
     "Accept two host names that are one machine, whose ranks then share its CPUs and devices; otherwise this is an error"},
    {"runner.program", runner<&Runner::program>, Form{"argv", check_any}, "",
     "Program and arguments of a rank; empty = a sortie-train of stage, else in containers that of the image, else the one in the folder of sortie"},
    {"runner.work_dir", runner<&Runner::work_dir>, kPathForm, "",
     "Working folder of the ranks; must exist on every host. Empty = that of the launcher, or the home folder on a host without it, with a warning", kPath},
    {"runner.master_addr", runner<&Runner::master_addr>, Form{"a host name or address", check_address}, "",
     "MASTER_ADDR of the ranks; empty = the address at which the other hosts reach the first host"},
    {"runner.master_port", runner<&Runner::master_port>, IntegerRange{0, 65535}, "",
     "MASTER_PORT of the ranks; 0 = a free port of the first host that no other job of Sortie uses"},
    {"runner.devices", runner<&Runner::devices>, Choices{{"host", "rank", "all"}}, "",
     "GPUs visible to a rank: host = those of all slots of its host, indexed by LOCAL_RANK as with torchrun; "
     "rank = only that of its own slot; all = no variable is set"},
    {"runner.cpu_binding", runner<&Runner::cpu_binding>, Choices{{"auto", "none", "core", "numa"}}, "",
     "CPUs of a rank: core = its share of the host's cores, within a NUMA node and near its GPU if possible; numa = whole NUMA nodes; "
     "auto = core, but the only rank of a host gets all CPUs; with more ranks than cores no rank is bound"},
    {"runner.env", runner<&Runner::env>, Form{"NAME = \"value\"", check_env_name}, "",
     "Environment variables set for every rank; values of names that end in _TOKEN, _KEY, _PASSWD, _PASSPHRASE or _CREDENTIALS, or contain PASSWORD or the word SECRET, are secrets like those of secret_env", kMayHoldSecrets | kCommon},
    {"runner.secret_env", runner<&Runner::secret_env>, Form{"NAME = \"value\"", check_env_name}, "",
     "Environment variables of every rank whose values are never shown or written; \"(secret)\" = the value is in secrets_file or in sortie's own environment", kSecrets | kMayHoldSecrets},
    {"runner.secrets_file", runner<&Runner::secrets_file>, kPathForm, "",
     "File with more secret variables on the launcher's machine, NAME=value lines and # comments, readable only by its owner", kPath},
    {"runner.env_passthrough", runner<&Runner::env_passthrough>, Form{"name patterns", check_env_pattern}, "",
     "Variables of the launcher's environment that are passed to every rank, * = any characters"},
    {"runner.stage", runner<&Runner::stage>, Form{"path, or path -> name", check_stage_item}, "",
     "Files and folders to copy to every host before ranks start; ranks find them in SORTIE_STAGE; write {stage} for it in program, env, data paths, trainer.load_dir and trainer.load_weights_from", kPath | kCommon},
    {"runner.stage_cache_gib", runner<&Runner::stage_cache_gib>, IntegerRange{0, 1'000'000}, "",
     "Largest size in GiB of a host's cache of staged files; beyond it, the least recently used files are removed", kUser},
    {"runner.mpi", runner<&Runner::mpi>, Choices{{"auto", "on", "off"}}, "",
     "Serve PMIx to the ranks, so that MPI programs start without mpirun: auto = if the host has libpmix, on = required"},
    {"runner.grace", runner<&Runner::grace>, DurationRange{"0s", "1h"}, "",
     "Time between SIGTERM and SIGKILL when ranks are stopped", kUser},
    {"runner.startup_timeout", runner<&Runner::startup_timeout>, DurationRange{"1s", "1h"}, "",
     "Timeout of a host for each of: the start of its runner, the preparation of the job, the start of its ranks", kUser},
    {"runner.heartbeat_interval", runner<&Runner::heartbeat_interval>, DurationRange{"50ms", "10m"}, "",
     "Interval of heartbeats between launcher and runners", kUser},
    {"runner.heartbeat_timeout", runner<&Runner::heartbeat_timeout>, DurationRange{"100ms", "1h"}, "",
     "A host is lost after this time without a heartbeat; more than twice heartbeat_interval", kUser},
    {"runner.on_launcher_loss", runner<&Runner::on_launcher_loss>, Form{"kill | hold DURATION", check_launcher_loss}, "",
     "What a host does when the connection to the launcher breaks: end its ranks, or hold them for this time until the launcher reconnects or another one adopts them (`sortie attach --adopt`)", kUser},

    {"runner.transport", runner<&Runner::transport>, Form{"argv with {host}", check_any}, "",
     "A program that runs a command on a host with its stdin and stdout, instead of SSH: [\"docker\", \"exec\", \"-i\", \"{host}\"], "
     "[\"kubectl\", \"exec\", \"-i\", \"{host}\", \"--\"]; the command is appended. Empty = SSH", kUser},

    {"runner.network.interface", network<&Network::interface>, Form{"NAME, name pattern or CIDR", check_interface}, "",
     "Network of MASTER_ADDR, NCCL, Gloo and Open MPI, like \"eth1\", \"ib*\" or \"10.1.0.0/16\"; every host must have it; empty = detected", kUser},
    {"runner.network.tunnel", network<&Network::tunnel>, Choices{{"none", "wireguard"}}, "",
     "wireguard = a mesh of encrypted tunnels between all hosts, created for the run and removed after it; MASTER_ADDR, NCCL, Gloo and Open MPI then use it; "
     "needs root, or sudo without a password, on every host"},
    {"runner.network.tunnel_port", network<&Network::tunnel_port>, IntegerRange{1, 65535}, "",
     "UDP port of the tunnels on every host; of each two hosts, one must accept it. If another program uses it, one of the next 15 is taken"},

    {"runner.ssh.user", ssh<&Ssh::user>, Form{"a login name", check_user}, "", "Login name on the hosts", kUser},
    {"runner.ssh.port", ssh<&Ssh::port>, IntegerRange{0, 65535}, "", "Port of sshd; 0 = that of ~/.ssh/config, else 22", kUser},
    {"runner.ssh.identity_file", ssh<&Ssh::identity_file>, kPathForm, "", "Private key to log in with, before those of ~/.ssh/config", kPath | kUser},
    {"runner.ssh.config_file", ssh<&Ssh::config_file>, kPathForm, "", "OpenSSH client config to honour; empty = ~/.ssh/config", kPath | kUser},
    {"runner.ssh.known_hosts_file", ssh<&Ssh::known_hosts_file>, kPathForm, "",
     "Host keys that are trusted; empty = UserKnownHostsFile of the config, else ~/.ssh/known_hosts", kPath | kUser},
    {"runner.ssh.accept_new", ssh<&Ssh::accept_new>, {}, "", "Trust and record the key of a host that is not known yet; a changed key is always refused", kUser},
    {"runner.ssh.resolve_timeout", ssh<&Ssh::resolve_timeout>, kConnectStage, "", "Timeout of the name lookup of a host", kUser},
    {"runner.ssh.connect_timeout", ssh<&Ssh::connect_timeout>, kConnectStage, "", "Timeout of the TCP connection to a host", kUser},
    {"runner.ssh.handshake_timeout", ssh<&Ssh::handshake_timeout>, kConnectStage, "", "Timeout of the SSH handshake and the host key check", kUser},
    {"runner.ssh.auth_timeout", ssh<&Ssh::auth_timeout>, kConnectStage, "", "Timeout of authentication", kUser},
    {"runner.ssh.fanout", ssh<&Ssh::fanout>, IntegerRange{1, 4096}, "hosts",
     "Number of hosts to connect to at the same time; a host that has not answered within a second no longer counts", kUser},
    {"runner.ssh.persist", ssh<&Ssh::persist>, DurationRange{"0s", "24h"}, "",
     "How long idle connections and runners are kept for the next exec, shell, push, pull, check or image push "
     "(`sortie connections ls`); 0 = not kept. `run` uses them only with on_launcher_loss = \"hold T\"", kUser},
    {"runner.ssh.command", ssh<&Ssh::command>, Form{"argv", check_any}, "",
     "An ssh program and its options, like [\"ssh\", \"-o\", \"BatchMode=yes\"], to connect with; empty = Sortie's built-in SSH client", kUser},
    {"runner.ssh.control", ssh<&Ssh::control>, Choices{{"auto", "no"}}, "",
     "auto = use running OpenSSH masters, and start masters, as ControlMaster, ControlPath and ControlPersist of ~/.ssh/config say; "
     "no = use no masters", kUser},

    {"model.preset", model<&Model::preset>, Form{"the name of a shape", check_preset}, "",
     "A published model; it sets the defaults of the other keys of the section, like \"gpt2-124m\"; empty = the documented defaults", kCommon},
    {"model.architecture", model<&Model::architecture>, Choices{architecture_names()}, "",
     "Model family; see trainer/models/README.md", kShown},
    {"model.vocab_size", model<&Model::vocab_size>, IntegerRange{1, kMaxInt32}, "tokens", "Token ids are 0 to vocab_size - 1", kShown},
    {"model.hidden_size", model<&Model::hidden_size>, IntegerRange{1, 1 << 20}, "", "Width of the residual stream", kShown},
    {"model.num_layers", model<&Model::num_layers>, IntegerRange{1, 65536}, "", "Transformer blocks", kShown},
    {"model.num_attention_heads", model<&Model::num_attention_heads>, IntegerRange{1, 65536}, "", "Query heads per layer", kShown},
    {"model.attention_num_kv_heads", model<&Model::attention_num_kv_heads>, IntegerRange{0, 65536}, "", "Key and value heads per layer; 0 = num_attention_heads", kCommon},
    {"model.head_dim", model<&Model::head_dim>, IntegerRange{0, 65536}, "", "Width of a head; 0 = hidden_size / num_attention_heads"},
    {"model.ffn_hidden_size", model<&Model::ffn_hidden_size>, IntegerRange{0, 1 << 24}, "",
     "Inner width of the MLP; 0 = 8/3 hidden_size rounded up to a multiple of 64 where the MLP is gated, else (gpt2, gpt-neo, gpt-neo-x) 4 hidden_size", kCommon},
    {"model.sequence_length", model<&Model::sequence_length>, IntegerRange{1, 1 << 24}, "tokens", "Tokens per sequence", kShown},
    {"model.num_positions", model<&Model::num_positions>, IntegerRange{0, 1 << 24}, "tokens",
     "Longest sequence of the model, and the number of rows of a learned position embedding; 0 = sequence_length"},
    {"model.weight_tying", model<&Model::weight_tying>, {}, "", "Use the embedding matrix also as output matrix"},
    {"model.attention_layers", model<&Model::attention_layers>, Form{"global | local", check_attention_layer}, "",
     "Which layers attend to all earlier tokens (global) and which to a window (local), repeated over the layers; empty = [global, local] for gpt-neo, else local if attention_window is set"},
    {"model.attention_window", model<&Model::attention_window>, IntegerRange{0, 1 << 24}, "tokens",
     "Tokens that a local layer attends to, the current one included; 0 = 256 for gpt-neo, else all"},
    {"model.rotary_embedding_base", model<&Model::rotary_embedding_base>, NumberRange{1, 1e12, true, false}, "", "Base of the RoPE frequencies"},
    {"model.rotary_percentage", model<&Model::rotary_percentage>, NumberRange{0, 1, true, false}, "", "Share of head_dim that RoPE rotates"},
    {"model.rope_scaling", model<&Model::rope_scaling>, Choices{{"none", "linear", "llama3", "yarn"}}, "",
     "How RoPE is extended to sequences longer than those of pretraining: linear scales all frequencies, llama3 and yarn only the low ones"},
    {"model.rope_scaling_factor", model<&Model::rope_scaling_factor>, NumberRange{1, 1e6}, "", "Divisor of the frequencies"},
    {"model.rope_scaling_low_frequency", model<&Model::rope_scaling_low_frequency>, NumberRange{0, 1e6, true, false}, "",
     "llama3, yarn: frequencies with fewer rotations within the original length are divided by the whole factor"},
    {"model.rope_scaling_high_frequency", model<&Model::rope_scaling_high_frequency>, NumberRange{0, 1e6, true, false}, "",
     "llama3, yarn (32 in its paper): frequencies with more rotations within the original length are not changed"},
    {"model.rope_scaling_original_length", model<&Model::rope_scaling_original_length>, IntegerRange{1, 1 << 24}, "tokens",
     "llama3, yarn: sequence length of pretraining"},
    {"model.rope_scaling_mscale", model<&Model::rope_scaling_mscale>, NumberRange{0, 1000}, "",
     "yarn: cos and sin are multiplied by the temperature of this weight over that of rope_scaling_mscale_all_dim; 0 = where either is 0, by the temperature of weight 1"},
    {"model.rope_scaling_mscale_all_dim", model<&Model::rope_scaling_mscale_all_dim>, NumberRange{0, 1000}, "",
     "yarn: see rope_scaling_mscale; in deepseek-v3, attention scores are also multiplied by the square of this temperature"},
    {"model.norm_epsilon", model<&Model::norm_epsilon>, NumberRange{0, 1, true, false}, "", "Added to the variance in RMSNorm and LayerNorm"},
    {"model.parallel_residual", model<&Model::parallel_residual>, {}, "", "Attention and MLP read the same input; gpt-neo-x only"},
    {"model.document_end_token", model<&Model::document_end_token>, IntegerRange{-1, kMaxInt32}, "",
     "Token that ends a document: tokens after it do not attend to tokens before it; -1 = a sequence is one document. Token files must end their documents with it (`data build --append-eod`)"},
    {"model.reset_positions", model<&Model::reset_positions>, {}, "", "Count positions from the start of each document; needs document_end_token"},
    {"model.embedding_dropout", model<&Model::embedding_dropout>, NumberRange{0, 1, false, true}, "", "Dropout of the embedding"},
    {"model.attention_dropout", model<&Model::attention_dropout>, NumberRange{0, 1, false, true}, "", "Dropout of the attention probabilities"},
    {"model.residual_dropout", model<&Model::residual_dropout>, NumberRange{0, 1, false, true}, "", "Dropout of the outputs of attention and MLP"},
    {"model.init_std", model<&Model::init_std>, NumberRange{0, 10}, "", "Standard deviation of the initial weights; for output projections it is divided by sqrt(2 num_layers)"},
    {"model.precision", model<&Model::precision>, Choices{{"auto", "bf16", "f32", "fp8"}}, "", "Number format of the matrix products: auto = bf16 if the device supports it, else f32; fp8 = linear layers in FP8, on GPUs of compute capability 8.9 and newer, all else as with bf16", kCommon},
    {"model.fp8_scaling", model<&Model::fp8_scaling>, Choices{{"current", "delayed"}}, "", "Scale of a tensor with precision = fp8: current = by its own largest value; delayed = by that of the last 16 steps, so that the tensor is read once instead of twice"},

    {"model.moe.num_experts", moe<&Moe::num_experts>, IntegerRange{1, 65536}, "", "Experts per mixture"},
    {"model.moe.topk", moe<&Moe::topk>, IntegerRange{1, 1024}, "", "Experts that a token is sent to"},
    {"model.moe.ffn_hidden_size", moe<&Moe::ffn_hidden_size>, IntegerRange{0, 1 << 24}, "", "Inner width of an expert; 0 = model.ffn_hidden_size"},
    {"model.moe.num_shared_experts", moe<&Moe::num_shared_experts>, IntegerRange{0, 1024}, "", "Shared experts, which process every token; computed as one expert of this many times the width; deepseek-v3"},
    {"model.moe.first_dense_layers", moe<&Moe::first_dense_layers>, IntegerRange{0, 65536}, "", "Layers with a plain MLP before the first mixture; deepseek-v3"},
    {"model.moe.layer_step", moe<&Moe::layer_step>, IntegerRange{1, 65536}, "", "Every layer_step-th layer, counted from 1, is a mixture; the others have a plain MLP; qwen3-moe"},
    {"model.moe.normalize_topk", moe<&Moe::normalize_topk>, {}, "", "Divide the router weights of a token by their sum; qwen3-moe and deepseek-v3, mixtral always does"},
    {"model.moe.scaling_factor", moe<&Moe::scaling_factor>, NumberRange{0, 1000, true, false}, "", "Factor of the router weights of a token; deepseek-v3"},
    {"model.moe.num_groups", moe<&Moe::num_groups>, IntegerRange{1, 65536}, "", "Number of expert groups of equal size; deepseek-v3"},
    {"model.moe.group_topk", moe<&Moe::group_topk>, IntegerRange{1, 65536}, "", "Number of groups from which a token's experts are chosen; deepseek-v3"},
    {"model.moe.bias_update_rate", moe<&Moe::bias_update_rate>, NumberRange{0, 1}, "", "Step size of the router bias towards an even load; 0 = the bias is constant; deepseek-v3"},
    {"model.moe.seq_aux_loss_coeff", moe<&Moe::seq_aux_loss_coeff>, NumberRange{0, 1000}, "", "Weight of the balance loss of each sequence; deepseek-v3"},
    {"model.moe.aux_loss_coeff", moe<&Moe::aux_loss_coeff>, NumberRange{0, 1000}, "", "Weight of the balance loss of each micro-batch over all layers; mixtral and qwen3-moe"},
    {"model.moe.capacity_factor", moe<&Moe::capacity_factor>, NumberRange{0, 1000}, "", "In training, an expert accepts at most this many times its even share of each sequence's tokens, the earliest first, and drops the rest; 0 = no limit"},

    {"model.mla.q_lora_rank", mla<&Mla::q_lora_rank>, IntegerRange{0, 1 << 20}, "", "Width of the latent vector that queries are computed from; 0 = from the hidden state"},
    {"model.mla.kv_lora_rank", mla<&Mla::kv_lora_rank>, IntegerRange{1, 1 << 20}, "", "Width of the latent vector that keys and values are computed from"},
    {"model.mla.qk_nope_head_dim", mla<&Mla::qk_nope_head_dim>, IntegerRange{1, 65536}, "", "Dimensions of a query or key without RoPE"},
    {"model.mla.qk_rope_head_dim", mla<&Mla::qk_rope_head_dim>, IntegerRange{2, 65536}, "", "Dimensions of a query or key with RoPE"},
    {"model.mla.v_head_dim", mla<&Mla::v_head_dim>, IntegerRange{1, 65536}, "", "Width of a value"},

    {"model.mtp.num_layers", mtp<&Mtp::num_layers>, IntegerRange{0, 16}, "", "Number of tokens after the next one that are also predicted in training, with one layer for each"},
    {"model.mtp.loss_coeff", mtp<&Mtp::loss_coeff>, NumberRange{0, 1000}, "", "Weight of the mean of their losses"},

    {"data.data_prefixes", data<&Data::data_prefixes>, Form{"paths without .bin and .idx", check_data_prefix}, "",
     "Token files to train on: PREFIX of PREFIX.bin and PREFIX.idx, the same path on every host", kShown | kPath},
    {"data.validation_data_prefixes", data<&Data::validation_data_prefixes>, Form{"paths without .bin and .idx", check_data_prefix}, "",
     "Token files to validate on", kShown | kPath},
    {"data.chat_files", data<&Data::chat_files>, kPathForm, "",
     "Conversations to train on instead of token files; only the answers have a loss: JSONL with {\"messages\": [{\"role\", \"content\"}, ...]}, which is written as ChatML, or {\"prompt\", \"completion\"} a line", kPath},
    {"data.validation_chat_files", data<&Data::validation_chat_files>, kPathForm, "", "The same, to validate on", kPath},
    {"data.pack_conversations", data<&Data::pack_conversations>, {}, "",
     "Put as many conversations into a sequence as fit. They do not attend to each other, and each has positions of its own: the gradients are those of the conversations one by one. false = a sequence holds one conversation"},
    {"data.validation_sets", data<&Data::validation_sets>, Form{"NAME = \"PREFIX\"", check_set_name}, "",
     "More validation sets by name, as in { wiki = \"/data/wiki-validation\" }: a PREFIX of token files, or a .jsonl file of conversations. Each has a loss of its own; the validation loss is the mean over the sets", kPath},
    {"data.weights", data<&Data::weights>, Form{"numbers above 0", check_weight}, "",
     "Share of each of data_prefixes in the training samples, as in [\"0.7\", \"0.3\"]; empty = the files are concatenated"},
    {"data.sampler", data<&Data::sampler>, Choices{{"sortie", "megatron", "scaling"}}, "",
     "Order of training samples. sortie: every epoch is shuffled anew; megatron: the samples and the order of Megatron's GPTDataset and BlendedDataset for the same seed and number of samples; scaling: those of Scaling's TextDataset and BlendedDataset for the same seed, micro batch and number of ranks"},
    {"data.tokenizer", data<&Data::tokenizer>, Form{"byte | sentencepiece:FILE | hf:FILE", check_tokenizer}, "",
     "Tokenizer of the token files and conversations; hf: a tokenizer.json. Every checkpoint holds a copy. Empty = that of the token files", kPath | kCommon},
};
// clang-format on

}  // namespace

std::span<const Field> fields() {
  static const std::vector<Field> kAll = [] {
    std::vector<Field> all(std::begin(kFields), std::end(kFields));
    const auto ssh = std::ranges::find(all, "runner.ssh", section_of);
    const std::vector<Field> container = container_fields();
    all.insert(ssh, container.begin(), container.end());
    const auto first_model = std::ranges::find(all, "model", section_of);
    const std::span<const Field> recovery = recovery_fields();
    all.insert(first_model, recovery.begin(), recovery.end());
    const auto model = std::ranges::find(all, "model", section_of);
    const std::span<const Field> training = training_fields();
    all.insert(model, training.begin(), training.end());
    return all;
  }();
  return kAll;
}

std::span<const Section> sections() {
  return kSections;
}

const Field* find_field(std::string_view key) {
  const auto found = std::ranges::find(fields(), key, &Field::key);
  return found == fields().end() ? nullptr : &*found;
}

}  // namespace sortie::config
