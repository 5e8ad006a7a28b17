// Tests that the planned memory of a rank is what its training then uses.
#include "tests/support/bf16.h"
#include "trainer/planning/rank_plan.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "common/config/architectures.h"
#include "tests/support/every_case.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_mixture.h"

namespace sortie::trainer::test {
namespace {

/// Returns a job wide enough that tensors, not their bookkeeping, determine the memory.
config::JobConfig sized_job(const std::string& architecture) {
  config::ModelConfig probe;
  probe.architecture = architecture;
  const config::Architecture& row = config::architecture_of(probe);
  config::JobConfig job = row.mixture ? mixture_job(architecture) : tiny_job(architecture);
  config::ModelConfig& m = job.model;
  m.vocab_size = 5003;
  m.hidden_size = 192;
  m.num_layers = 4;
  m.num_attention_heads = 8;
  m.attention_num_kv_heads = row.grouped ? 2 : 0;
  m.head_dim = row.own_head_dim ? 40 : 0;
  m.ffn_hidden_size = 512;
  m.sequence_length = 192;
  if (row.mixture) m.moe.ffn_hidden_size = 160;
  if (row.latent) {
    m.head_dim = 0;
    m.mla = {.q_lora_rank = 96,
             .kv_lora_rank = 64,
             .qk_nope_head_dim = 32,
             .qk_rope_head_dim = 16,
             .v_head_dim = 32};
  }
  job.topology.micro_batch_size = 4;
  job.topology.global_batch_size = 8;
  return job;
}

/// Returns a job that is small enough for an emulated GPU.
config::JobConfig gpu_sized_job(const char* architecture, const char* recompute,
                                std::int64_t micro_batches) {
  config::JobConfig job = sized_job(architecture);
  job.model.vocab_size = 503;
  job.model.num_layers = 2;
  job.model.sequence_length = 48;
  job.model.ffn_hidden_size = 256;
  job.topology.micro_batch_size = 2;
  job.topology.global_batch_size = 2 * micro_batches;
  job.topology.activation_checkpointing_type = recompute;
  return job;
}

void check_close(const char* what, std::int64_t planned, std::int64_t measured) {
  CAPTURE(std::string(what));
  const auto a = static_cast<double>(planned), b = static_cast<double>(measured);
  CAPTURE(a);
  CAPTURE(b);
  CHECK(std::abs(a - b) <= 0.01 * b);
}

/// Compares the planned memory with that of training. A job of precision fp8 uses FP8 in addition
/// to `dtype`, which is bf16.
void check_memory(const config::JobConfig& job, DType dtype, int threads = 1) {
  CAPTURE(job.model.architecture);
  CAPTURE(job.topology.activation_checkpointing_type);
  CAPTURE(dtype_name(dtype));
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator, dtype, threads);
  training.losses(2);
  const auto plan = plan_rank(job, {.micro_batch_size = job.topology.micro_batch_size,
                                    .dtype = dtype,
                                    .threads = threads,
                                    .gpu = on_gpu()});
  REQUIRE(plan.has_value());
  const MemoryUse measured =
      tensor_memory(training.trainer->store(), training.trainer->context().allocator());
  const MemoryUse& planned = plan->memory;
  CHECK(planned.weights == measured.weights);
  CHECK(planned.gradients == measured.gradients);
  CHECK(planned.optimizer == measured.optimizer);
  CHECK(planned.packed == measured.packed);
  // On a GPU, without the workspace, which would hide differences in the rest.
  const std::int64_t workspace = on_gpu() ? std::int64_t{32} << 20 : 0;
  check_close("activations", planned.activations - workspace, measured.activations - workspace);
  check_close("with cached blocks", planned.total() - planned.process - planned.device,
              measured.total());
  if (on_gpu())
    CHECK(measured.total() ==
          static_cast<std::int64_t>(training.trainer->context().allocator().bytes_reserved()));
}

/// Checks every family with one of the four ways to compute or, with SORTIE_EVERY_CASE, with all of
/// them. Each way is checked with several families.
void check_families(void (*change)(config::JobConfig&)) {
  std::size_t family_index = 0;
  for (const Family& family : families()) {
    std::size_t way = 0;
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const char* recompute : {"disabled", "every_layer"}) {
        const bool chosen = way++ == family_index % 4 || sortie::test::every_case();
        if (!chosen) continue;
        config::JobConfig job = sized_job(std::string(family.name));
        job.topology.activation_checkpointing_type = recompute;
        change(job);
        // On a processor without bf16, the family is planned in f32.
        check_memory(job, multiplies_bf16() ? dtype : DType::f32);
      }
    ++family_index;
  }
}

}  // namespace

TEST_CASE("every family: a plan is within a hundredth of the memory that training takes") {
  check_families([](config::JobConfig&) {});
}

TEST_CASE("one micro-batch a step, of packed documents, keeps no packed weights, as planned") {
  check_families([](config::JobConfig& job) {
    job.topology.global_batch_size = job.topology.micro_batch_size;
    job.model.document_end_token = 3;
    job.model.reset_positions = true;
  });
}

TEST_CASE("every family: LoRA on every matrix takes what is planned") {
  check_families([](config::JobConfig& job) {
    job.lora.rank = 8;
    job.lora.modules = {"*"};
  });
}

TEST_CASE("every family: frozen layers take no memory of training, as planned") {
  check_families([](config::JobConfig& job) { job.optimizer.freeze = {"layers.[01].*"}; });
}

TEST_CASE("what fine-tuning leaves out takes no memory, as planned") {
  config::JobConfig lora = sized_job("llama");
  lora.lora.rank = 8;
  lora.lora.modules = {"*.attention.*", "*.mlp.down"};
  config::JobConfig last = sized_job("gpt2");
  last.optimizer.freeze = {"embedding.*", "positions.*", "layers.[0-2].*"};
  config::JobConfig experts = sized_job("qwen3-moe");
  experts.optimizer.freeze = {"layers.[01].*", "*.experts.*", "embedding.*", "head.*"};
  experts.model.weight_tying = false;
  config::JobConfig head = sized_job("deepseek-v3");
  head.optimizer.freeze = {"layers.*", "embedding.*"};
  head.model.weight_tying = false;
  for (config::JobConfig& job : std::array{lora, last, experts, head})
    for (const char* recompute : {"disabled", "every_layer"}) {
      job.topology.activation_checkpointing_type = recompute;
      check_memory(job, DType::f32);
    }
}

TEST_CASE("moments in bf16 take half of the memory, in steps and in saves, as planned") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = sized_job("llama");
  job.trainer.save_dir = dir.str("checkpoints");
  job.trainer.save_interval = 5;
  const auto planned = [&] {
    const auto plan = plan_rank(job, {.micro_batch_size = job.topology.micro_batch_size});
    REQUIRE(plan.has_value());
    return plan->memory;
  };
  const MemoryUse wide = planned();
  job.optimizer.moments = "bf16";
  const MemoryUse narrow = planned();
  CHECK(narrow.optimizer * 2 == wide.optimizer);
  CHECK(narrow.snapshot * 12 == wide.snapshot * 8);
  CHECK(narrow.weights == wide.weights);
  job.trainer.save_dir.clear();
  check_memory(job, DType::f32);
}

TEST_CASE("experts that take a part of the choices have memory for no more, as planned") {
  for (const char* architecture : {"mixtral", "deepseek-v3"}) {
    config::JobConfig job = sized_job(architecture);
    const auto activations = [&] {
      const auto plan = plan_rank(job, {.micro_batch_size = job.topology.micro_batch_size});
      REQUIRE(plan.has_value());
      return plan->memory.activations;
    };
    const std::int64_t all = activations();
    job.model.moe.capacity_factor = 0.5;
    CHECK(activations() < all);
    check_memory(job, DType::f32);
  }
}

TEST_CASE("the copy of the state that background saves write is in the plan") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = sized_job("llama");
  job.lora.rank = 8;
  job.lora.modules = {"*.attention.*"};
  job.trainer.save_dir = dir.str("checkpoints");
  job.trainer.save_interval = 5;
  const auto planned = [&](std::int64_t ranks) {
    const auto plan =
        plan_rank(job, {.micro_batch_size = job.topology.micro_batch_size, .world_size = ranks});
    REQUIRE(plan.has_value());
    CHECK(plan->memory.total() > plan->memory.snapshot);
    return plan->memory.snapshot;
  };
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator);
  std::int64_t bytes = 0;
  for (const auto& parameter : training.trainer->store().parameters())
    bytes += parameter->elements() * (parameter->trained() ? 12 : 4);
  CHECK(planned(1) == bytes);
  CHECK(planned(4) == (bytes / 4 + 3) / 4 * 4);  // rounded up to whole values
  job.trainer.async_save = false;
  CHECK(planned(1) == 0);
  job.trainer.async_save = true;
  job.trainer.save_interval = 0;  // training waits for the last save
  CHECK(planned(1) == 0);
  job.trainer.eval_interval = 10;  // but not for saves of the lowest validation loss
  CHECK(planned(1) == bytes);
}

TEST_CASE("checkpoints in memory are in the plan: two snapshots of the shares that a rank writes") {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = sized_job("llama");
  job.trainer.save_dir = dir.str("checkpoints");
  job.trainer.save_interval = 10;  // in the background, which copies a rank's share
  const auto planned = [&](std::int64_t ranks) {
    const auto plan =
        plan_rank(job, {.micro_batch_size = job.topology.micro_batch_size, .world_size = ranks});
    REQUIRE(plan.has_value());
    CHECK(plan->memory.total() > plan->memory.memory_checkpoints);
    CHECK(plan->memory.snapshot * ranks >= plan->parameters.total * 12);
    return std::pair(plan->memory.memory_checkpoints, plan->memory.snapshot);
  };
  CHECK(planned(4).first == 0);
  job.trainer.memory_checkpoint_interval = 20;
  CHECK(planned(1).first == 2 * planned(1).second);
  const auto [bytes, share] = planned(4);
  CHECK(bytes == 4 * share);  // its own share and another host's, two snapshots each
}

TEST_CASE("dropout, documents, tables of positions and more threads are in the plan") {
  config::JobConfig job = sized_job("gpt2");
  job.model.embedding_dropout = job.model.residual_dropout = job.model.attention_dropout = 0.1;
  job.model.document_end_token = 3;
  job.model.reset_positions = true;
  check_memory(job, DType::f32, 2);
  job = sized_job("gpt-neo-x");
  job.model.parallel_residual = false;
  job.model.weight_tying = false;
  check_memory(job, DType::f32, 3);
  job = sized_job("deepseek-v3");
  job.model.mla.q_lora_rank = 0;
  job.model.mtp.num_layers = 2;
  check_memory(job, DType::f32, 2);
}

TEST_CASE("on a GPU: a plan is within a hundredth of what the GPU's allocator then has" *
          doctest::skip(no_gpu_is_tested())) {
  struct Row {
    const char* architecture;
    DType dtype;
    const char* recompute;
    std::int64_t micro_batches;
  };
  for (const Row& row :
       {Row{"llama", DType::f32, "disabled", 1}, Row{"gpt2", DType::bf16, "every_layer", 2},
        Row{"deepseek-v3", DType::bf16, "disabled", 2}}) {
    config::JobConfig job = gpu_sized_job(row.architecture, row.recompute, row.micro_batches);
    check_memory(job, row.dtype);
  }
  config::JobConfig demo = gpu_sized_job("llama", "disabled", 1);
  demo.optimizer.name = "demo";
  check_memory(demo, DType::bf16);
}

TEST_CASE("on a GPU: casts to FP8 are in the plan, and take less than what bf16 keeps" *
          doctest::skip(no_gpu_is_tested())) {
  struct Row {
    const char* architecture;
    const char* recompute;
    std::int64_t micro_batches;
  };
  for (const Row& row : {Row{"llama", "disabled", 1}, Row{"gpt2", "every_layer", 2},
                         Row{"qwen3", "disabled", 2}, Row{"deepseek-v3", "disabled", 2}}) {
    config::JobConfig job = gpu_sized_job(row.architecture, row.recompute, row.micro_batches);
    job.model.precision = "fp8";
    check_memory(job, DType::bf16);
    const auto planned = [&](const char* precision) {
      job.model.precision = precision;
      const auto plan = plan_rank(job, {.micro_batch_size = 2, .dtype = DType::bf16, .gpu = true});
      REQUIRE(plan.has_value());
      return *plan;
    };
    const RankPlan narrow = planned("fp8"), wide = planned("bf16");
    CHECK(narrow.flop_per_token == wide.flop_per_token);
    CHECK(narrow.memory.weights == wide.memory.weights);
    CHECK((narrow.memory.packed > 0) == (row.micro_batches > 1));
    if (std::string(row.recompute) == "disabled")
      CHECK(narrow.memory.activations < wide.memory.activations);
  }
}

TEST_CASE("of a GPU a plan has other parts than of a CPU") {
  const config::JobConfig job = sized_job("llama");
  const auto planned = [&](std::int64_t ranks, bool gpu) {
    const auto plan = plan_rank(job, {.micro_batch_size = 4, .world_size = ranks, .gpu = gpu});
    REQUIRE(plan.has_value());
    return plan->memory;
  };
  CHECK(planned(1, false).device == 0);
  const MemoryUse one = planned(1, true), two = planned(2, true);
  CHECK(one.packed == 0);
  CHECK(one.activations > std::int64_t{32} << 20);  // cuBLASLt's workspace
  CHECK(one.device > 0);
  CHECK(two.device > one.device);  // NCCL's groups
  CHECK(one.on_gpu() == one.tensors() + one.cached + one.device);
}

TEST_CASE("every group of ranks and every line between stages takes memory of a GPU") {
  const auto groups = [](std::int64_t tensor, std::int64_t pipeline, std::int64_t ranks,
                         const char* backend = "auto") {
    config::JobConfig job = sized_job("llama");
    job.model.num_layers = 4;
    job.topology.tensor_parallel_size = tensor;
    job.topology.pipeline_parallel_size = pipeline;
    job.topology.backend = backend;
    const auto device = [&](const config::JobConfig& of, std::int64_t world) {
      const auto plan = plan_rank(of, {.micro_batch_size = 1, .world_size = world, .gpu = true});
      REQUIRE(plan.has_value());
      return plan->memory.device;
    };
    const std::int64_t alone = device(sized_job("llama"), 1);
    return (device(job, ranks) - alone) / (std::int64_t{256} << 20);
  };
  CHECK(groups(1, 1, 2) == 1);  // only the world
  // World, tensor and model, and the tensor group of the experts, which are laid out like the rest.
  CHECK(groups(2, 1, 2) == 4);
  // World, pipeline and model, and a line each way to every neighbouring stage: one for two stages,
  // two for four.
  CHECK(groups(1, 2, 2) == 3 + 2);
  CHECK(groups(1, 4, 4) == 3 + 4);
  CHECK(groups(1, 4, 4, "mpi") == 0);
}

}  // namespace sortie::trainer::test
