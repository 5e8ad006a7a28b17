// A tiny model, synthetic samples and a Trainer, for tests of the training loop.
#pragma once

#include <filesystem>

#include "common/base/check.h"
#include "tests/support/flat_values.h"
#include "trainer/loop/trainer.h"
#include "trainer/random/random.h"

namespace sortie::trainer::test {

/// Learnable samples: an arithmetic progression modulo the vocabulary size.
class ProgressionSource final : public SampleSource {
 public:
  explicit ProgressionSource(std::int64_t vocab) : vocab_(vocab) {}
  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override {
    const auto start =
        static_cast<std::int64_t>(random_bits(1, static_cast<std::uint64_t>(index)) % 1000);
    const std::int64_t stride = 1 + index % 3;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] =
          static_cast<std::int32_t>((start + static_cast<std::int64_t>(i) * stride) % vocab_);
      targets[i] =
          static_cast<std::int32_t>((start + static_cast<std::int64_t>(i + 1) * stride) % vocab_);
    }
    return {};
  }
  std::string fingerprint() const override { return "progression"; }
  std::int64_t samples_per_epoch() const override { return 1000; }

 private:
  std::int64_t vocab_;
};

/// Same, with masked targets, whose number differs from sample to sample.
class MaskedSource : public SampleSource {
 public:
  explicit MaskedSource(std::int64_t vocab) : plain_(vocab) {}
  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override {
    SORTIE_TRY(plain_.sample(index, tokens, targets));
    const std::size_t masked = static_cast<std::size_t>(index * 7 % 19);
    for (std::size_t i = 0; i < std::min(masked, targets.size()); ++i) targets[i] = -100;
    return {};
  }
  bool masks_targets() const override { return true; }
  std::string fingerprint() const override { return "masked"; }
  std::int64_t samples_per_epoch() const override { return plain_.samples_per_epoch(); }

 private:
  ProgressionSource plain_;
};

/// Same, in sequences packed from documents of 1 to 6 tokens.
class PackedSource final : public MaskedSource {
 public:
  using MaskedSource::MaskedSource;
  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override {
    SORTIE_TRY(MaskedSource::sample(index, tokens, targets));
    for (std::size_t i = static_cast<std::size_t>(index) % 3; i + 1 < targets.size();
         i += 1 + i % 6)
      targets[i] = ops::kDocumentEnds;
    return {};
  }
  bool packed() const override { return true; }
  std::string fingerprint() const override { return "packed"; }
};

inline config::JobConfig tiny_job(const std::string& architecture = "llama") {
  config::JobConfig job;
  job.model.architecture = architecture;
  job.model.vocab_size = 50;
  job.model.hidden_size = 48;
  job.model.num_layers = 2;
  job.model.num_attention_heads = 4;
  job.model.attention_num_kv_heads = architecture == "llama" ? 2 : 4;
  job.model.rotary_percentage = architecture == "llama" ? 1.0 : 0.5;
  job.model.sequence_length = 19;
  job.model.precision = "f32";
  job.topology.global_batch_size = 8;
  job.topology.micro_batch_size = 2;
  job.learning_rate_scheduler.learning_rate = 1e-2;
  job.trainer.train_iterations = 20;
  job.optimizer.allreduce_bucket_size = 2000;
  return job;
}

/// The tested device, as a rank would choose it.
inline ComputeDevice compute_device() {
  ComputeDevice compute{.device = device(), .gpu = {}, .free_bytes = 0, .libraries = {}};
  if (!on_gpu()) return compute;
  compute.gpu = GpuFacts{.name = "tested GPU", .compute_capability = 90};
  compute.libraries = "CUDA 13.0";
  return compute;
}

/// A Trainer and everything that it refers to.
struct TinyTraining {
  config::JobConfig job;
  RankContext rank;
  CpuFacts cpu = cpu_facts();
  EventSink events;
  std::unique_ptr<SampleSource> training;
  ProgressionSource validation;
  std::unique_ptr<Trainer> trainer;

  TinyTraining(config::JobConfig job_config, Communicator& communicator,
               DType precision = DType::f32, int threads = 1,
               std::unique_ptr<SampleSource> samples = nullptr, RankContext context = {},
               const outer::Site* site = nullptr)
      : job(std::move(job_config)),
        rank(std::move(context)),
        training(samples ? std::move(samples)
                         : std::make_unique<ProgressionSource>(job.model.vocab_size)),
        validation(job.model.vocab_size) {
    rank.rank = communicator.rank();
    rank.world_size = communicator.size();
    rank.threads = threads;
    if (!rank.compute.gpu) rank.compute = compute_device();  // otherwise chosen by the caller
    rank.host = "host-" + std::to_string(rank.rank);
    const auto batch = config::resolve_batch(job.topology, communicator.size());
    SORTIE_CHECK(batch.violations.empty(), "{}",
                 batch.violations.empty() ? "" : batch.violations[0].message);
    auto sink = EventSink::open("");
    SORTIE_CHECK(sink.has_value());
    events = std::move(*sink);
    trainer = std::make_unique<Trainer>(job, batch.plan, rank, communicator, events, *training,
                                        std::vector<ValidationSet>{{"validation", &validation}},
                                        cpu, precision, "test-build");
    if (site != nullptr) trainer->set_site(*site);
    const auto started = trainer->start();
    SORTIE_CHECK(started.has_value(), "{}", started ? "" : started.error().message);
  }

  struct Batch {
    Tensor tokens, targets;
  };
  /// The first `rows` training samples as one micro-batch.
  Batch first_rows(std::int64_t rows) {
    const std::int64_t length = job.model.sequence_length;
    const auto width = static_cast<std::size_t>(length);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows) * width),
        targets(tokens.size());
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::size_t begin = static_cast<std::size_t>(row) * width;
      const auto read = training->sample(row, std::span(tokens).subspan(begin, width),
                                         std::span(targets).subspan(begin, width));
      SORTIE_CHECK(read.has_value(), "{}", read ? "" : read.error().message);
    }
    return {to_device(tokens, {rows, length}), to_device(targets, {rows, length})};
  }
  Tensor to_device(const std::vector<std::int32_t>& values, Shape shape) {
    return ops::tensor_from_host<std::int32_t>(trainer->context(), values, shape);
  }
  /// The loss of a batch, summed over the targets that count, and their number.
  ops::CrossEntropyResult loss(Graph& graph, const Batch& batch, float grad_scale,
                               ForwardContext& forward) {
    return ops::read_cross_entropy(
        trainer->context(),
        trainer->model().loss(graph, batch.tokens, batch.targets, grad_scale, forward));
  }

  std::vector<double> losses(int steps) {
    std::vector<double> out;
    for (int i = 0; i < steps; ++i) {
      const auto report = trainer->step();
      SORTIE_CHECK(report.has_value(), "{}", report ? "" : report.error().message);
      out.push_back(report->loss);
    }
    return out;
  }
};

/// Starts a trainer and destroys it.
inline Result<> start_trainer(const config::JobConfig& job, RunTokenizer tokenizer = {},
                              const outer::Site* site = nullptr) {
  const auto communicator = make_single_communicator();
  RankContext rank;
  rank.compute = compute_device();
  auto events = EventSink::open("");
  ProgressionSource samples(job.model.vocab_size);
  const CpuFacts cpu = cpu_facts();
  const auto batch = config::resolve_batch(job.topology, 1);
  Trainer trainer(job, batch.plan, rank, *communicator, *events, samples, {}, cpu, DType::f32,
                  "test-build");
  trainer.set_tokenizer(std::move(tokenizer));
  if (site != nullptr) trainer.set_site(*site);
  return trainer.start();
}

/// Error message of a failed start; "none" if the trainer starts.
inline std::string start_error(const config::JobConfig& job) {
  const auto started = start_trainer(job);
  return started ? "none" : started.error().message;
}

}  // namespace sortie::trainer::test
