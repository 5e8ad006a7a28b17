// What a plan says of a rank's memory is what its training then takes.
#include "common/model/memory.h"

#include <doctest/doctest.h>

#include "common/config/architectures.h"
#include "tests/support/tiny_mixture.h"

namespace sortie::trainer::test {
namespace {

/// Wide enough that tensors, not their book-keeping, decide.
config::JobConfig sized_job(const std::string& architecture) {
  config::ModelConfig probe;
  probe.architecture = architecture;
  const config::Architecture& row = config::architecture_of(probe);
  config::JobConfig job = row.mixture ? mixture_job(architecture) : tiny_job(architecture);
  config::ModelConfig& m = job.model;
  m.vocab_size = 5003;
  m.hidden_size = 256;
  m.num_layers = 4;
  m.num_attention_heads = 8;
  m.attention_num_kv_heads = row.grouped ? 2 : 0;
  m.head_dim = row.own_head_dim ? 40 : 0;
  m.ffn_hidden_size = 704;
  m.sequence_length = 256;
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

struct Measured {
  double weights, gradients, optimizer, packed, activations, reserved;
};

void show(const char* what, double planned, double measured) {
  MESSAGE(what << ": planned " << planned / 1e6 << " MB, measured " << measured / 1e6 << " MB, "
               << (planned / measured - 1.0) * 100 << " %");
}

void check_close(const char* what, std::int64_t planned, std::size_t measured) {
  CAPTURE(std::string(what));
  const auto a = static_cast<double>(planned), b = static_cast<double>(measured);
  show(what, a, b);
  CHECK(a > 0.9 * b);
  CHECK(a < 1.1 * b);
}

void check_memory(const config::JobConfig& job, DType dtype, int threads = 1) {
  CAPTURE(job.model.architecture);
  CAPTURE(job.topology.activation_checkpointing_type);
  CAPTURE(dtype_name(dtype));
  const auto communicator = make_single_communicator();
  TinyTraining training(job, *communicator, dtype, threads);
  training.losses(3);
  Allocator& allocator = training.trainer->context().allocator();
  const auto plan =
      model::plan_memory(job, job.topology.micro_batch_size, 1,
                         {.element = static_cast<std::int64_t>(dtype_bytes(dtype)),
                          .threads = threads,
                          .packs_for_avx512 = training.cpu.isa.starts_with("avx512")});
  REQUIRE(plan.has_value());
  const std::int64_t kept = plan->weights + plan->gradients + plan->optimizer + plan->packed;
  MESSAGE(job.model.architecture << " " << dtype_name(dtype) << " "
                                 << job.topology.activation_checkpointing_type);
  check_close("kept", kept, allocator.bytes_in_use());
  check_close("activations", plan->activations,
              allocator.peak_bytes_in_use() - allocator.bytes_in_use());
  check_close("peak", plan->tensors(), allocator.peak_bytes_in_use());
  check_close("reserved", plan->tensors() + plan->cached, allocator.bytes_reserved());
}

}  // namespace

TEST_CASE("every family: a plan is within a tenth of the memory that training takes") {
  for (const Family& family : families())
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const char* recompute : {"disabled", "every_layer"}) {
        if (dtype == DType::bf16 && !cpu_facts().multiplies_bf16) continue;
        config::JobConfig job = sized_job(std::string(family.name));
        job.topology.activation_checkpointing_type = recompute;
        check_memory(job, dtype);
      }
}

}  // namespace sortie::trainer::test
