// Batch sizes: which keys determine the others, and which combinations are rejected.
#include "tests/common/config/broken_rules.h"

using namespace sortie::config;
using namespace sortie::test;

namespace {

std::string batch_error(const TopologyConfig& topology, std::int64_t world_size) {
  return text_of(resolve_batch(topology, world_size).violations);
}

}  // namespace

TEST_CASE("two of the three batch keys decide") {
  struct Row {
    TopologyConfig topology;
    std::int64_t world_size;
    BatchPlan plan;
  };
  const Row rows[] = {
      {{}, 4, {4, 1, 1, 4}},
      {{.micro_batch_size = 2}, 4, {4, 2, 1, 8}},
      {{.micro_batch_size = 2, .gradient_accumulation_steps = 3}, 4, {4, 2, 3, 24}},
      {{.micro_batch_size = 2, .global_batch_size = 24}, 4, {4, 2, 3, 24}},
      {{.micro_batch_size = 0, .gradient_accumulation_steps = 3, .global_batch_size = 24},
       4,
       {4, 2, 3, 24}},
      {{.data_parallel_size = 4,
        .micro_batch_size = 2,
        .gradient_accumulation_steps = 3,
        .global_batch_size = 24},
       4,
       {4, 2, 3, 24}},
  };
  for (const Row& row : rows) {
    const BatchOutcome outcome = resolve_batch(row.topology, row.world_size);
    CHECK(text_of(outcome.violations) == "");
    CHECK(outcome.plan == row.plan);
    CHECK(text_of(check_batch(row.topology)) == "");
  }
}

TEST_CASE("a global batch may be that of several sites, whose number is unknown") {
  TopologyConfig topology{.data_parallel_size = 4,
                          .micro_batch_size = 2,
                          .gradient_accumulation_steps = 2,
                          .global_batch_size = 32};
  CHECK(text_of(check_batch(topology)) == "");
  topology.global_batch_size = 24;
  CHECK(text_of(check_batch(topology)).starts_with("T4 topology.global_batch_size: 24 is not 16"));
}

TEST_CASE("batch sizes that do not fit the ranks name the nearest that do") {
  CHECK(batch_error({.micro_batch_size = 2, .global_batch_size = 20}, 4) ==
        "T4 topology.global_batch_size: 20 is no multiple of 8 = 2 (micro_batch_size) * 4 (ranks), "
        "so gradient_accumulation_steps is no whole number; use 16 or 24");
  CHECK(batch_error({.micro_batch_size = 2, .global_batch_size = 4}, 4) ==
        "T4 topology.global_batch_size: 4 is no multiple of 8 = 2 (micro_batch_size) * 4 (ranks), "
        "so gradient_accumulation_steps is no whole number; use 8");
  CHECK(
      batch_error(
          {.micro_batch_size = 0, .gradient_accumulation_steps = 3, .global_batch_size = 20}, 4) ==
      "T4 topology.global_batch_size: 20 is no multiple of 12 = 3 (gradient_accumulation_steps) "
      "* 4 (ranks), so micro_batch_size is no whole number; use 12 or 24");
  CHECK(
      batch_error(
          {.micro_batch_size = 2, .gradient_accumulation_steps = 3, .global_batch_size = 12}, 4) ==
      "T4 topology.global_batch_size: 12 is not 24 = 2 (micro_batch_size) * 3 "
      "(gradient_accumulation_steps) * 4 (ranks); use 24, or set one of the three to 0");
  CHECK(batch_error({.data_parallel_size = 3}, 4) ==
        "T2 topology.data_parallel_size: 3 does not fit a job of 4 ranks; use 4, or 0 to follow "
        "the hosts");
  CHECK(
      batch_error({.micro_batch_size = 1 << 20, .gradient_accumulation_steps = 1 << 20}, 1 << 28) ==
      "T4 topology.global_batch_size: 1099511627776 sequences on each of 268435456 ranks is too "
      "large; lower micro_batch_size or gradient_accumulation_steps");
}

TEST_CASE("a batch ramp-up grows in equal shares and is whole for the ranks that there are") {
  const TopologyConfig topology{.micro_batch_size = 2,
                                .global_batch_size = 32,
                                .batch_rampup_start = 8,
                                .batch_rampup_increment = 8,
                                .batch_rampup_samples = 120};
  const BatchOutcome outcome = resolve_batch(topology, 4);
  REQUIRE(text_of(outcome.violations) == "");
  const BatchPlan& plan = outcome.plan;
  CHECK(batch_size_at(plan, 0) == 8);
  CHECK(batch_size_at(plan, 39) == 8);
  CHECK(batch_size_at(plan, 40) == 16);  // 120 samples over the three sizes below the full one
  CHECK(batch_size_at(plan, 119) == 24);
  CHECK(batch_size_at(plan, 120) == 32);
  CHECK(batch_size_at(plan, 1'000'000) == 32);
  // 5 steps of 8, 3 of 16 (88 samples), 2 of 24 (136), then 32 each
  CHECK(samples_of_steps(plan, 5) == 40);
  CHECK(samples_of_steps(plan, 10) == 136);
  CHECK(samples_of_steps(plan, 110) == 136 + 3200);
  CHECK(steps_for_samples(plan, 40) == 5);
  CHECK(steps_for_samples(plan, 136) == 10);
  CHECK(steps_for_samples(plan, 137) == 11);
  CHECK(steps_for_samples(plan, 136 + 3200) == 110);
  CHECK(batch_error(topology, 8) ==
        "T6 topology.batch_rampup_start: 8 is no multiple of 16 = 2 (micro_batch_size) * 8 "
        "(replicas);"
        " use 16\n"
        "T6 topology.batch_rampup_increment: 8 is no multiple of 16 = 2 (micro_batch_size) * 8 "
        "(replicas); use 16");
  TopologyConfig uneven = topology;
  uneven.batch_rampup_increment = 16;
  CHECK(batch_error(uneven, 4) ==
        "T6 topology.batch_rampup_start: steps of 16 from 8 do not lead to global_batch_size = 32; "
        "use a start and an increment that do");
  CHECK(batch_size_at(resolve_batch({.micro_batch_size = 2, .global_batch_size = 32}, 4).plan, 0) ==
        32);
}
