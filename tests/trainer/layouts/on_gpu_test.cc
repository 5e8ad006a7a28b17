// Compares every layout, each rank with a separate context on the tested GPU, with one process on
// the CPU.
#include "tests/support/emulated.h"
#include "tests/support/every_case.h"
#include "tests/trainer/layouts/expert_runs.h"
#include "tests/trainer/layouts/layout_runs.h"
#include "tests/trainer/parallel/socket_ranks.h"

namespace sortie::trainer::test {
namespace {

struct SharedOut {
  const char* name;
  std::function<void(config::TopologyConfig&)> change;
  int ranks = 2;
};

config::JobConfig shared_out_job(const std::string& architecture) {
  config::JobConfig job =
      architecture == "llama" ? tiny_job(architecture) : experts_job(architecture);
  job.model.num_layers = architecture == "llama" ? 4 : 2;
  job.model.sequence_length = 16;
  job.topology.global_batch_size = 4;
  job.topology.micro_batch_size = 1;
  job.optimizer.eps = 1e-4;  // keeps small moments from amplifying rounding differences
  return job;
}

/// Runs the job as one process on the CPU.
LayoutRun run_alone(const config::JobConfig& job, int steps) {
  const OnDevice cpu({});
  return run_layout(job, 1, steps);
}

void check_shared_out(const config::JobConfig& job, const std::vector<SharedOut>& ways, int steps) {
  const LayoutRun alone = run_alone(job, steps);
  for (const SharedOut& way : ways) {
    CAPTURE(std::string(way.name));
    config::JobConfig shared = job;
    way.change(shared.topology);
    check_equal(run_layout(shared, way.ranks, steps), alone);
  }
}

}  // namespace

TEST_CASE("on a GPU: every way to share a model out gives the CPU's losses and gradients" *
          doctest::skip(no_gpu_is_tested())) {
  const int steps = sortie::test::every_case() ? 10 : 2;
  check_shared_out(
      shared_out_job("llama"),
      {{"replicas", [](auto&) {}},
       {"a sharded optimizer", [](auto& topology) { topology.parameter_sharding = "optimizer"; }},
       {"full sharding", [](auto& topology) { topology.parameter_sharding = "full"; }},
       {"shared layers",
        [](auto& topology) {
          topology.tensor_parallel_size = 2;
          topology.sequence_parallel = true;
        }},
       {"shared sequences", [](auto& topology) { topology.context_parallel_size = 2; }},
       {"stages", [](auto& topology) { topology.pipeline_parallel_size = 2; }}},
      steps);
  check_shared_out(shared_out_job("deepseek-v3"),
                   {{"experts apart", [](auto& topology) { topology.expert_parallel_size = 2; }}},
                   steps);
}

TEST_CASE("on a GPU: tensor 2 x pipeline 2 x replicas 2" * doctest::skip(no_gpu_is_tested())) {
  check_shared_out(shared_out_job("llama"),
                   {{"mix",
                     [](auto& topology) {
                       topology.tensor_parallel_size = 2;
                       topology.sequence_parallel = true;
                       topology.pipeline_parallel_size = 2;
                       topology.parameter_sharding = "optimizer";
                     },
                     8}},
                   1);
}

/// Trains on ranks that each have a separate GPU and communicate by NCCL. Returns for each rank the
/// loss and norm of each step, each preceded by the validation loss if the job validates.
std::vector<std::vector<double>> train_over_nccl(const config::JobConfig& job, int ranks,
                                                 int steps) {
  std::vector<std::vector<double>> told(static_cast<std::size_t>(ranks));
  const RankErrors errors = run_gpu_ranks(ranks, [&](Communicator& world, ExecutionContext&) {
    RankContext rank;
    rank.compute = compute_device();
    rank.compute.device.index = world.rank();
    TinyTraining training(job, world, DType::f32, 1, nullptr, rank);
    for (int step = 0; step < steps; ++step) {
      if (job.trainer.eval_interval > 0) {
        const auto validation = training.trainer->evaluate();
        SORTIE_CHECK(validation.has_value(), "a validation");
        told[static_cast<std::size_t>(world.rank())].push_back(validation->loss);
      }
      const auto report = training.trainer->step();
      SORTIE_CHECK(report.has_value(), "{}", report ? "" : report.error().message);
      for (const double value : {report->loss, report->grad_norm})
        told[static_cast<std::size_t>(world.rank())].push_back(value);
    }
    training.trainer->context().synchronize();
    world.barrier();
  });
  CHECK(all_empty(errors));
  return told;
}

/// Checks results of train_over_nccl() without validations: they are equal on all ranks, and near
/// to those of one process.
void check_told(const std::vector<std::vector<double>>& told, const LayoutRun& alone) {
  for (const std::vector<double>& other : told) CHECK(told[0] == other);
  REQUIRE(told[0].size() == 2 * alone.losses.size());
  for (std::size_t i = 0; i < alone.losses.size(); ++i) {
    CHECK(told[0][2 * i] == doctest::Approx(alone.losses[i]).epsilon(1e-5));
    CHECK(told[0][2 * i + 1] == doctest::Approx(alone.norms[i]).epsilon(1e-4));
  }
}

TEST_CASE("on a GPU: stages that send each other tensors over NCCL train as one process does" *
          doctest::skip(!gpu_is_emulated())) {
  config::JobConfig job = shared_out_job("llama");
  job.model.weight_tying = true;  // the first and last stages sum the tied weight's gradient
  job.topology.micro_batch_size = 1;
  const int steps = 3;
  const LayoutRun alone = run_alone(job, steps);
  job.optimizer.gradient_clipping = 0;
  job.topology.pipeline_parallel_size = 2;
  for (const int interleave : {1, 2}) {
    CAPTURE(interleave);
    job.topology.pipeline_interleave = interleave;
    const auto told = train_over_nccl(job, 2, steps);
    check_told(told, alone);
  }
}

TEST_CASE("on a GPU: ranks that share sequences send each other keys over NCCL" *
          doctest::skip(!gpu_is_emulated())) {
  config::JobConfig job = shared_out_job("llama");
  job.model.num_layers = 2;
  const int steps = 2;
  const LayoutRun alone = run_alone(job, steps);
  job.optimizer.gradient_clipping = 0;
  for (const int ranks : {2, 4}) {
    if (ranks == 2 && !sortie::test::every_case()) continue;
    CAPTURE(ranks);
    job.topology.context_parallel_size = ranks;
    check_told(train_over_nccl(job, ranks, steps), alone);
  }
}

TEST_CASE("on a GPU: what ranks that share sequences send does not pass through the host" *
          doctest::skip(!gpu_is_emulated())) {
  config::JobConfig job = shared_out_job("llama");
  job.model.num_layers = 1;
  job.topology.micro_batch_size = job.topology.global_batch_size / 2;
  const auto read_in = [&](std::int64_t steps) {
    const std::uint64_t before = emulated_count("sortie_emulated_read_bytes");
    train_over_nccl(job, 2, static_cast<int>(steps));
    return emulated_count("sortie_emulated_read_bytes") - before;
  };
  const auto read_in_a_step = [&] { return read_in(2) - read_in(1); };
  const std::uint64_t replicas = read_in_a_step();
  job.topology.context_parallel_size = 2;
  CHECK(read_in_a_step() == replicas);
}

// With one micro-batch per step, gradients replace those of the step before. The host tracks which
// gradients hold values, whichever parts of a step are graphs.
TEST_CASE("on a GPU: steps whose updates alone are graphs train as one process does" *
          doctest::skip(!gpu_is_emulated())) {
  config::JobConfig job = shared_out_job("llama");
  job.topology.micro_batch_size = job.topology.global_batch_size;
  const int steps = 5;
  const LayoutRun alone = run_alone(job, steps);
  job.optimizer.gradient_clipping = 0;
  job.topology.tensor_parallel_size = 2;
  const auto told = train_over_nccl(job, 2, steps);
  check_told(told, alone);
}

TEST_CASE("on a GPU: replicas whose reductions cut their graphs have the bits of no graphs" *
          doctest::skip(!gpu_is_emulated())) {
  config::JobConfig job = shared_out_job("llama");
  job.learning_rate_scheduler.learning_rate_warmup_steps = 3;
  job.optimizer.allreduce_bucket_size = 20000;  // several buckets
  job.trainer.train_iterations = 6;
  const auto same = [&](const auto& train) {
    std::vector<std::vector<std::vector<double>>> told;
    std::vector<std::uint64_t> launches;
    for (const char* graphs : {"auto", "off"}) {
      job.trainer.cuda_graphs = graphs;
      const std::uint64_t before = emulated_count("sortie_emulated_launches");
      told.push_back(train());
      launches.push_back(emulated_count("sortie_emulated_launches") - before);
    }
    CHECK(told[0] == told[1]);
    CHECK(launches[0] < launches[1] * 2 / 3);
  };
  for (const std::string sharding : {"none", "optimizer"}) {
    CAPTURE(sharding);
    job.topology.parameter_sharding = sharding;
    for (const std::int64_t batch : {2, 4}) {  // one and two micro-batches per step
      CAPTURE(batch);
      job.topology.global_batch_size = batch;
      job.trainer.eval_interval = batch == 4 ? 1 : 0;  // while updated weights are in transfer
      job.trainer.eval_samples = 4;
      same([&] { return train_over_nccl(job, 2, 6); });
    }
  }
  job.topology.parameter_sharding = "none";
  job.trainer.eval_interval = 0;
  // The same without NCCL: exchanges pass through the host.
  same([&] {
    const LayoutRun run = run_layout(job, 2, 6);
    return std::vector<std::vector<double>>{run.losses, run.norms};
  });
}

TEST_CASE("on a GPU: DeMo's members have the same bits with and without graphs and NCCL" *
          doctest::skip(!gpu_is_emulated())) {
  config::JobConfig job = shared_out_job("llama");
  job.model.num_layers = 1;
  job.optimizer = {};
  job.optimizer.name = "demo";
  job.optimizer.chunk = 64;
  job.optimizer.top_k = 64;
  job.optimizer.gradient_clipping = 0;
  job.learning_rate_scheduler.learning_rate_warmup_steps = 3;
  job.topology.global_batch_size = 2;
  const int steps = 6;
  struct Told {
    std::vector<double> values;
    std::uint64_t launches = 0;
  };
  const auto train = [&](const char* graphs, bool nccl) {
    job.trainer.cuda_graphs = graphs;
    const std::uint64_t before = emulated_count("sortie_emulated_launches");
    Told told;
    if (nccl) {
      const auto of_ranks = train_over_nccl(job, 2, steps);
      CHECK(of_ranks[0] == of_ranks[1]);
      told.values = of_ranks[0];
    } else {
      const LayoutRun run = run_layout(job, 2, steps);
      CHECK(run.wrong == "");
      for (std::size_t i = 0; i < run.losses.size(); ++i)
        told.values.insert(told.values.end(), {run.losses[i], run.norms[i]});
    }
    told.launches = emulated_count("sortie_emulated_launches") - before;
    return told;
  };
  const Told graphs = train("auto", true), ops = train("off", true);
  CHECK(graphs.values == ops.values);
  CHECK(graphs.launches < ops.launches);
  CHECK(train("auto", false).values == graphs.values);
  const LayoutRun cpu = [&] {
    const OnDevice chosen({});
    return run_layout(job, 2, steps);
  }();
  for (std::size_t i = 0; i < cpu.losses.size(); ++i)
    CHECK(graphs.values[2 * i] == doctest::Approx(cpu.losses[i]).epsilon(1e-3));
}

TEST_CASE("on a GPU: a message says which parts of a step are not graphs, and why" *
          doctest::skip(no_gpu_is_tested())) {
  const auto notes_of = [](const std::function<void(config::JobConfig&)>& change) {
    config::JobConfig job = shared_out_job("llama");
    change(job);
    std::vector<std::string> notes;
    run_thread_ranks(2, [&](Communicator& world) {
      const Layout layout(job.topology, world);
      RankContext rank;
      rank.rank = world.rank();
      rank.world_size = world.size();
      rank.threads = 1;
      rank.compute = compute_device();
      ProgressionSource samples(job.model.vocab_size);
      const auto batch = config::resolve_batch(job.topology, world.size());
      TrainingStep step(job, batch.plan, rank, layout, samples);
      SORTIE_CHECK(step.prepare().has_value(), "a step");
      step.allocate(DType::f32);
      if (world.rank() == 0) notes = step.take_graph_notes();
    });
    return notes;
  };
  using Notes = std::vector<std::string>;
  const std::string passes = "passes of micro-batches are not CUDA graphs: ";
  CHECK(notes_of([](auto&) {}).empty());
  CHECK(notes_of([](auto& job) {
          job.optimizer = {};
          job.optimizer.name = "demo";
        }).empty());
  CHECK(notes_of([](auto& job) { job.topology.tensor_parallel_size = 2; }) ==
        Notes{passes + "ranks exchange values in them"});
  CHECK(notes_of([](auto& job) { job.topology.pipeline_parallel_size = 2; }) ==
        Notes{passes + "stages of a pipeline wait for each other"});
  CHECK(notes_of([](auto& job) { job.topology.parameter_sharding = "optimizer"; }).empty());
  CHECK(notes_of([](auto& job) { job.topology.parameter_sharding = "full"; }) ==
        Notes{passes + "weights are gathered for each layer"});
  CHECK(notes_of([](auto& job) {
          job.topology.tensor_parallel_size = 2;
          job.trainer.cuda_graphs = "off";
        }).empty());
}

}  // namespace sortie::trainer::test
