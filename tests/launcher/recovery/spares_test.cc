// Spares with their slots, and jobs on fewer ranks.
#include "launcher/recovery/spares.h"

#include <doctest/doctest.h>

#include "common/config/validate.h"
#include "launcher/recovery/shrink.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using test::contains;
using Hosts = std::vector<config::HostSlots>;

TEST_CASE("spares are host lines, each machine once") {
  const test::ScopedTempDir dir;
  test::write_text(dir / "groups.toml", "reserve = \"r[1-2]\"\n");
  config::JobConfig job;
  job.runner.default_slots = 2;
  job.runner.groups_file = dir.str("groups.toml");
  job.recovery.spares = {"s[1-2]", "s3 slots=4,5,6", "@reserve slots=1"};
  const auto spares = job_spares(job, {{"h1", {0, 1}}});
  REQUIRE(spares);
  CHECK(*spares ==
        Hosts{{"s1", {0, 1}}, {"s2", {0, 1}}, {"s3", {4, 5, 6}}, {"r1", {0}}, {"r2", {0}}});
  job.recovery.spares = {"s1", "s[1-2]"};
  CHECK(
      contains(job_spares(job, {}).error().message, "recovery.spares: s1 is a host of the job or"));
  job.recovery.spares = {"h1"};
  CHECK_FALSE(job_spares(job, {{"h1", {0}}}));
  job.recovery.spares = {"@nobody"};
  CHECK(contains(job_spares(job, {}).error().message, "recovery.spares: '@nobody': "));
  job.recovery.spares.clear();
  CHECK(job_spares(job, {})->empty());
}

TEST_CASE("the hosts of the next attempt have the slots that the job needs") {
  const Hosts before = {{"h1", {0, 1}}, {"h2", {0, 1}}, {"h3", {0, 1}}};
  const Hosts spares = {{"s1", {4, 5, 6}}};
  CHECK(with_slots({"h1", "s1", "h3"}, before, spares, {{"s1", "h2"}}) ==
        Hosts{{"h1", {0, 1}}, {"s1", {4, 5}}, {"h3", {0, 1}}});
  CHECK(with_slots({"s1", "h3"}, before, spares, {{"s1", "h2"}}) ==
        Hosts{{"s1", {4, 5}}, {"h3", {0, 1}}});
  CHECK(with_slots({"h1"}, before, spares, {}) == Hosts{{"h1", {0, 1}}});
}

TEST_CASE("fewer ranks train the same batch, or none") {
  config::JobConfig job;
  job.topology.micro_batch_size = 2;
  job.topology.gradient_accumulation_steps = 3;
  const auto batch = [&](std::int64_t configured, std::int64_t ranks) {
    const auto topology = topology_for(job, configured, ranks);
    return topology ? config::resolve_batch(*topology, ranks).plan : config::BatchPlan();
  };
  // 4 ranks with 2 x 3 sequences make a batch of 24: 3 ranks with 2 x 4, or 2 ranks with 2 x 6.
  CHECK(batch(4, 4).gradient_accumulation_steps == 3);
  CHECK(batch(4, 3).gradient_accumulation_steps == 4);
  CHECK(batch(4, 2).gradient_accumulation_steps == 6);
  CHECK(batch(4, 3).global_batch_size == 24);
  CHECK(batch(4, 3).micro_batch_size == 2);
  CHECK_FALSE(topology_for(job, 5, 4));  // 30 sequences do not divide by 4 x 2
  job.topology.data_parallel_size = 4;
  CHECK(batch(4, 2).data_parallel_size == 2);
  job.runner.program = {"./any"};
  CHECK(topology_for(job, 5, 4).has_value());
}

}  // namespace
}  // namespace sortie::launcher
