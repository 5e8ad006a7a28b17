#include "common/config/fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

namespace sortie::config {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Limits {
  double low = -kInfinity, high = kInfinity;
  std::vector<std::string_view> choices;
  bool is_path = false;
};
Limits at_least(double low) {
  return {low, kInfinity, {}, false};
}
Limits between(double low, double high) {
  return {low, high, {}, false};
}
Limits one_of(std::vector<std::string_view> choices) {
  return {-kInfinity, kInfinity, std::move(choices), false};
}
Limits path() {
  return {-kInfinity, kInfinity, {}, true};
}
Limits any() {
  return {};
}

// Key and member can not drift apart: one is the other's spelling.
#define FIELD(path, limits, help) \
  make_field(                     \
      #path, [](JobConfig & job) -> auto& { return job.path; }, limits, help)

template <class Access>
Field make_field(std::string_view key, Access access, Limits limits, std::string_view help) {
  using Reference = decltype(access(std::declval<JobConfig&>()));
  Reference (*member)(JobConfig&) = access;
  return {key, member, help, limits.low, limits.high, std::move(limits.choices), limits.is_path};
}

std::vector<Field> make_fields() {
  return {
      FIELD(runner.hosts, any(),
            "Hosts in rank order: \"h slots=4\", \"h slots=0,2,5\" or \"gpu[01-08] slots=8\"; "
            "empty = this machine."),
      FIELD(runner.hosts_file, path(),
            "A file of such lines, '#' starts a comment; excludes runner.hosts."),
      FIELD(runner.default_slots, between(1, 65535), "Slots of a host line that names none."),
      FIELD(runner.program, any(), "argv of every rank; empty = the sortie-train beside sortie."),
      FIELD(runner.work_dir, any(),
            "Folder in which ranks start; empty = where sortie runs. A host that lacks it uses the "
            "home folder."),
      FIELD(runner.master_addr, any(),
            "MASTER_ADDR; empty = the first host's address as it was reached."),
      FIELD(runner.master_port, between(1, 65535), "MASTER_PORT."),
      FIELD(runner.env, any(), "Environment of every rank."),
      FIELD(runner.env_passthrough, any(),
            "Variables of this environment that ranks get; '*' matches any text."),
      FIELD(runner.mpi, one_of({"auto", "on", "off"}),
            "Serve PMIx, so that MPI programs need no mpirun: auto = where libpmix is installed."),
      FIELD(runner.grace, between(0, 86400e3),
            "Time between TERM and KILL when ranks are stopped."),
      FIELD(runner.startup_timeout, between(1000, 86400e3),
            "Time for a connected host until its ranks are started."),
      FIELD(runner.heartbeat_interval, between(100, 3600e3),
            "Time between signs of life on a quiet connection."),
      FIELD(runner.heartbeat_timeout, between(500, 86400e3),
            "Silence after which the other side counts as lost."),
      FIELD(runner.ssh.user, any(), "Login name; empty = as ~/.ssh/config says, else yours."),
      FIELD(runner.ssh.port, between(0, 65535),
            "Port of sshd; 0 = as ~/.ssh/config says, else 22."),
      FIELD(runner.ssh.identity_file, path(),
            "Private key; empty = as ~/.ssh/config says, else the usual ones."),
      FIELD(runner.ssh.config_file, path(), "OpenSSH client config; empty = ~/.ssh/config."),
      FIELD(runner.ssh.known_hosts_file, path(),
            "Trusted host keys; empty = as ~/.ssh/config says."),
      FIELD(runner.ssh.accept_new, any(),
            "Trust and record the key of an unknown host; a changed key is always refused."),
      FIELD(runner.ssh.resolve_timeout, between(100, 3600e3), "Time for a host name to resolve."),
      FIELD(runner.ssh.connect_timeout, between(100, 3600e3), "Time for the TCP connection."),
      FIELD(runner.ssh.handshake_timeout, between(100, 3600e3), "Time for the SSH key exchange."),
      FIELD(runner.ssh.auth_timeout, between(100, 3600e3), "Time for authentication."),
      FIELD(runner.ssh.fanout, between(1, 4096),
            "Hosts that are being connected at the same time."),
      FIELD(logger.log_level, one_of({"debug", "info", "warning", "error"}),
            "What sortie says about itself."),
      FIELD(logger.log_dir, path(),
            "State folder with runs/; empty = $XDG_STATE_HOME/sortie or ~/.local/state/sortie."),
      FIELD(logger.log_interval, at_least(1), "Steps between step lines and metrics."),
      FIELD(logger.tensorboard, any(), "Write TensorBoard events into the run folder."),
      FIELD(topology.data_parallel_size, at_least(0),
            "Data-parallel ranks; 0 = all ranks, anything else is checked."),
      FIELD(topology.micro_batch_size, between(1, 1 << 20), "Sequences per rank and forward pass."),
      FIELD(topology.gradient_accumulation_steps, between(0, 1 << 20),
            "Forward passes per step; 0 = derived from global_batch_size, else 1."),
      FIELD(topology.global_batch_size, between(0, 1 << 30),
            "Sequences per step over all ranks; 0 = micro_batch_size x accumulation x ranks."),
      FIELD(
          topology.activation_checkpointing_type, one_of({"disabled", "every_layer"}),
          "every_layer keeps only the input of each layer and runs it again in the backward pass."),
      FIELD(optimizer.beta1, between(0, 0.999999), "AdamW: decay of the first moment."),
      FIELD(optimizer.beta2, between(0, 0.999999), "AdamW: decay of the second moment."),
      FIELD(optimizer.eps, between(1e-30, 1), "AdamW: added to the root of the second moment."),
      FIELD(optimizer.weight_decay, between(0, 10), "Decoupled weight decay, on matrices only."),
      FIELD(optimizer.gradient_clipping, at_least(0),
            "Largest global L2 norm of the gradients; 0 = no clipping."),
      FIELD(optimizer.allreduce_bucket_size, between(1024, 2147483647.0),
            "Elements per gradient bucket; buckets are reduced while the backward pass runs."),
      FIELD(learning_rate_scheduler.learning_rate, between(0, 1000), "Peak learning rate."),
      FIELD(learning_rate_scheduler.learning_rate_minimum, between(0, 1000),
            "Learning rate at the end of the decay."),
      FIELD(learning_rate_scheduler.learning_rate_decay_style,
            one_of({"constant", "linear", "cosine"}), "Shape of the decay after the warm-up."),
      FIELD(
          learning_rate_scheduler.learning_rate_decay_iters, at_least(0),
          "Step at which the minimum is reached, warm-up included; 0 = trainer.train_iterations."),
      FIELD(learning_rate_scheduler.learning_rate_warmup_steps, at_least(0),
            "Steps of linear warm-up."),
      FIELD(trainer.train_iterations, at_least(1),
            "Steps to train, those before a resume included."),
      FIELD(trainer.train_duration, at_least(0),
            "Stop after this much training time, counted from (re)start; 0s = no limit."),
      FIELD(trainer.seed, between(0, 9e15),
            "Seed of the initial weights and the order of samples."),
      FIELD(trainer.threads, between(0, 4096),
            "Compute threads per rank; 0 = OMP_NUM_THREADS, the rank's share of its host."),
      FIELD(trainer.save_dir, path(), "Folder of checkpoints; empty = none are written."),
      FIELD(trainer.save_interval, at_least(0), "Steps between checkpoints; 0 = only at the end."),
      FIELD(trainer.keep_last, at_least(0), "Committed checkpoints that are kept; 0 = all."),
      FIELD(
          trainer.load_dir, path(),
          "Checkpoint (or folder of them) to start from; empty = the newest in save_dir, if any."),
      FIELD(trainer.eval_interval, at_least(0), "Steps between validations; 0 = never."),
      FIELD(trainer.eval_iterations, at_least(1), "Validation micro-batches per rank."),
      FIELD(trainer.max_consecutive_skips, at_least(1),
            "Steps with non-finite gradients in a row before training gives up."),
      FIELD(profiler.profile_steps, between(0, 10000), "Steps to profile; 0 = off."),
      FIELD(profiler.profile_start_at_step, at_least(1), "First profiled step."),
      FIELD(profiler.profiler_output, path(),
            "Chrome trace; empty = profile-rank-N.json in the rank's work folder."),
      FIELD(model.architecture, one_of({"llama", "gpt-neo-x"}), "Form of the transformer."),
      FIELD(model.vocab_size, between(2, 1 << 24),
            "Tokens; rows of the embedding are padded to a multiple of 64."),
      FIELD(model.hidden_size, between(1, 1 << 20), "Width of the residual stream."),
      FIELD(model.num_layers, between(1, 10000), "Transformer blocks."),
      FIELD(model.num_attention_heads, between(1, 65536), "Query heads."),
      FIELD(model.attention_num_kv_heads, between(0, 65536),
            "Key and value heads; 0 = num_attention_heads."),
      FIELD(model.head_dim, between(0, 65536),
            "Size of a head; 0 = hidden_size / num_attention_heads."),
      FIELD(model.ffn_hidden_size, between(0, 1 << 24),
            "Width of the MLP; 0 = 8/3 hidden_size rounded up to 64 (llama), 4 hidden_size "
            "(gpt-neo-x)."),
      FIELD(model.sequence_length, between(1, 1 << 24), "Tokens per sequence."),
      FIELD(model.weight_tying, any(), "Use the embedding as the head."),
      FIELD(model.rotary_embedding_base, between(1, 1e12), "Base of the RoPE angles."),
      FIELD(model.rotary_percentage, between(0.0001, 1), "Share of each head that RoPE turns."),
      FIELD(model.norm_epsilon, between(1e-30, 1), "Added to the variance in norms."),
      FIELD(model.parallel_residual, any(), "gpt-neo-x: attention and MLP read the same input."),
      FIELD(model.init_std, between(1e-9, 100),
            "Standard deviation of initial weights; output projections get 1 / sqrt(2 layers) of "
            "it."),
      FIELD(model.precision, one_of({"auto", "bf16", "f32"}),
            "Compute type; master weights and sums are f32. auto = bf16 where the CPU multiplies "
            "it, else f32."),
      FIELD(data.data_prefixes, path(),
            "Training data: PREFIX of PREFIX.bin and PREFIX.idx, one after the other."),
      FIELD(data.validation_data_prefixes, path(), "Validation data, likewise."),
      FIELD(data.tokenizer, any(), "byte, or sentencepiece:FILE."),
  };
}

#undef FIELD

std::string format_number(double value) {
  char buffer[64];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  std::string text(buffer, end);
  // TOML tells a float from an integer by the point or the exponent.
  if (text.find_first_of(".en") == text.npos) text += ".0";
  return text;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> table = make_fields();
  return table;
}

const Field* find_field(std::string_view key) {
  const auto it = std::ranges::find(fields(), key, &Field::key);
  return it == fields().end() ? nullptr : &*it;
}

std::string_view type_name(const Field& field) {
  constexpr std::string_view kNames[] = {"boolean",  "integer",         "number",          "string",
                                         "duration", "list of strings", "table of strings"};
  return kNames[field.member.index()];
}

std::string format_duration(Milliseconds duration) {
  const std::int64_t count = duration.count();
  if (count % 1000 != 0) return fmt::format("{}ms", count);
  const std::int64_t seconds = count / 1000;
  if (seconds != 0 && seconds % 3600 == 0) return fmt::format("{}h", seconds / 3600);
  if (seconds != 0 && seconds % 60 == 0) return fmt::format("{}m", seconds / 60);
  return fmt::format("{}s", seconds);
}

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (byte < 0x20 || byte == 0x7f)
      out += fmt::format("\\u{:04X}", byte);
    else
      out += c;
  }
  return out + '"';
}

std::string toml_value(const Field& field, const JobConfig& job) {
  struct Visitor {
    JobConfig& job;
    std::string operator()(bool& (*get)(JobConfig&)) const { return get(job) ? "true" : "false"; }
    std::string operator()(std::int64_t& (*get)(JobConfig&)) const {
      return fmt::format("{}", get(job));
    }
    std::string operator()(double& (*get)(JobConfig&)) const { return format_number(get(job)); }
    std::string operator()(std::string& (*get)(JobConfig&)) const { return quote(get(job)); }
    std::string operator()(Milliseconds& (*get)(JobConfig&)) const {
      return quote(format_duration(get(job)));
    }
    std::string operator()(std::vector<std::string>& (*get)(JobConfig&)) const {
      std::string out;
      for (const std::string& item : get(job)) out += (out.empty() ? "" : ", ") + quote(item);
      return "[" + out + "]";
    }
    std::string operator()(StringMap& (*get)(JobConfig&)) const {
      std::string out;
      for (const auto& [name, value] : get(job))
        out += (out.empty() ? " " : ", ") + quote(name) + " = " + quote(value);
      return out.empty() ? "{}" : "{" + out + " }";
    }
  };
  // The accessors hand out mutable references; nothing is written here.
  return std::visit(Visitor{const_cast<JobConfig&>(job)}, field.member);
}

std::vector<std::string_view> sections() {
  std::vector<std::string_view> out;
  for (const Field& field : fields())
    if (out.empty() || out.back() != field.section()) out.push_back(field.section());
  return out;
}

std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace sortie::config
