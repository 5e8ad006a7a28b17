// The traffic of ranks in a plan, by the links that carry it.
#include "launcher/plan/plan_traffic.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using test::has;
constexpr std::int64_t kMebibyte = 1 << 20;

LaunchPlan planned(const std::vector<config::HostSlots>& hosts, std::int64_t pipeline,
                   std::vector<std::vector<training::ModelCost::StageUse>> stages) {
  config::JobConfig job;
  job.data.data_prefixes = {"/data/text"};
  job.topology.pipeline_parallel_size = pipeline;
  job.topology.micro_batch_size = 1;
  job.topology.gradient_accumulation_steps = 16;
  LauncherFacts facts{"/opt/sortie/bin/sortie-train", "/work", {}, {}, 0, {}};
  facts.ask_trainer = [&](const CostQuestion&) -> Result<training::ModelCost> {
    training::ModelCost cost;
    cost.memory = {{"bf16", {{"weights", 5 * kMebibyte}}}};
    cost.stages = stages;
    cost.bubble = 1.0 / 17.0;
    return cost;
  };
  const auto plan = make_plan(job, hosts, facts);
  REQUIRE_MESSAGE(plan.has_value(), (plan ? "" : plan.error().message));
  return *plan;
}

TEST_CASE("what stages and replicas send is summed by link, with bubble and memory of the stages") {
  const std::vector<config::HostSlots> hosts = {{"h1", {0, 1}}, {"h2", {0, 1}}};
  const LaunchPlan plan =
      planned(hosts, 2,
              {{{"bf16",
                 4 * kMebibyte,
                 {{"pipeline", 1, 100 * kMebibyte}, {"replicas", -1, 300 * kMebibyte}}}},
               {{"bf16",
                 5 * kMebibyte,
                 {{"pipeline", 0, 200 * kMebibyte}, {"replicas", -1, 300 * kMebibyte}}}}});
  CHECK(has(plan_text(plan),
            "  sends     of all ranks in a step, in MiB\n"
            "                            bf16\n"
            "    within hosts           1,200\n"
            "    between hosts            600\n"
            "    busiest host             400\n"
            "  bubble    5.9 % of a step: 2 stages wait for 16 micro-batches\n"
            "  stages    memory of a rank, in MiB\n"
            "                            bf16\n"
            "    stage 0                    4\n"
            "    stage 1                    5\n"));
  const auto traffic = plan_json(plan)["traffic"];
  CHECK(traffic["sent_bytes"]["bf16"]["within_hosts"] == 1200 * kMebibyte);
  CHECK(traffic["sent_bytes"]["bf16"]["between_hosts"] == 600 * kMebibyte);
  CHECK(traffic["sent_bytes"]["bf16"]["busiest_host"] == "h2");
  CHECK(traffic["sent_bytes"]["bf16"]["busiest_host_bytes"] == 400 * kMebibyte);
  CHECK(traffic["stage_memory_bytes"][1]["bf16"] == 5 * kMebibyte);
  CHECK(traffic["bubble"] == doctest::Approx(1.0 / 17.0));
}

TEST_CASE("replicas on unequal hosts send each of the others the same") {
  // Four ranks send 300 MiB each, 100 MiB to each of the three others. Two of them share h1.
  const std::vector<config::HostSlots> hosts = {{"h1", {0, 1}}, {"h2", {0}}, {"h3", {0}}};
  const LaunchPlan plan =
      planned(hosts, 1, {{{"bf16", kMebibyte, {{"world", -1, 300 * kMebibyte}}}}});
  const std::vector<StepTraffic> traffic = step_traffic(plan);
  REQUIRE(traffic.size() == 1);
  CHECK(traffic[0].within_hosts == doctest::Approx(200.0 * kMebibyte));
  CHECK(traffic[0].between_hosts == doctest::Approx(1000.0 * kMebibyte));
  CHECK(traffic[0].busiest_host == "h1");
  CHECK(traffic[0].busiest_bytes == doctest::Approx(400.0 * kMebibyte));
  CHECK_FALSE(has(plan_text(plan), "  bubble"));
}

TEST_CASE("a trainer that does not say what ranks send leaves the lines out") {
  const std::vector<config::HostSlots> hosts = {{"h1", {0, 1}}};
  const LaunchPlan plan = planned(hosts, 1, {});
  CHECK(step_traffic(plan).empty());
  CHECK_FALSE(has(plan_text(plan), "  sends"));
  CHECK_FALSE(plan_json(plan).contains("traffic"));
  // Unknown groups and ranks are ignored.
  const LaunchPlan odd =
      planned(hosts, 1, {{{"bf16", 0, {{"elsewhere", -1, 5}, {"world", 7, 5}}}}});
  REQUIRE(step_traffic(odd).size() == 1);
  CHECK(step_traffic(odd)[0].within_hosts == 0.0);
}

}  // namespace
}  // namespace sortie::launcher
