// The plan's output for a model that is sharded over several ranks.
#include "launcher/plan/plan_layout.h"

#include <doctest/doctest.h>

#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using test::has;

LaunchPlan plan_of(const std::vector<config::HostSlots>& hosts, std::int64_t tensor,
                   std::int64_t pipeline, std::int64_t context = 1) {
  config::JobConfig job;
  job.data.data_prefixes = {"/data/text"};
  job.topology.tensor_parallel_size = tensor;
  job.topology.pipeline_parallel_size = pipeline;
  job.topology.context_parallel_size = context;
  const LauncherFacts facts{"/opt/sortie/bin/sortie-train", "/work", {}, {}, 0, {}};
  const auto plan = make_plan(job, hosts, facts);
  REQUIRE_MESSAGE(plan.has_value(), (plan ? "" : plan.error().message));
  return *plan;
}

const std::vector<config::HostSlots> kFourHosts = {
    {"h1", {0, 1}}, {"h2", {0, 1}}, {"h3", {0, 1}}, {"h4", {0, 1}}};

TEST_CASE("a plan draws stages and replicas with their hosts") {
  const LaunchPlan plan = plan_of(kFourHosts, 2, 2);
  const std::string text = plan_text(plan);
  CHECK(has(text,
            "  layout    2 tensor x 2 pipeline x 2 replicas\n"
            "            stage 0    0-1 on h1  2-3 on h2\n"
            "            stage 1    4-5 on h3  6-7 on h4\n"
            "            groups: tensor within a host, pipeline across hosts, replicas across "
            "hosts\n"));
  CHECK(layout_warnings(plan).empty());
  CHECK(plan_json(plan)["layout"]["groups"][1]["across_hosts"] == 4);
}

TEST_CASE("a tensor-parallel group on several hosts is a warning") {
  const LaunchPlan plan = plan_of(kFourHosts, 4, 1);
  CHECK(has(plan_text(plan), "            ranks    0-3 on h[1-2]  4-7 on h[3-4]\n"));
  REQUIRE(layout_warnings(plan).size() == 1);
  CHECK(has(layout_warnings(plan)[0],
            "topology.tensor_parallel_size: 2 of 2 groups of 4 ranks are on several hosts"));
  CHECK(has(plan_text(plan), "  warning   topology.tensor_parallel_size: 2 of 2 groups"));
}

TEST_CASE("ranks that share sequences are drawn with their replica") {
  const LaunchPlan plan = plan_of(kFourHosts, 2, 1, 2);
  CHECK(has(plan_text(plan),
            "  layout    2 tensor x 2 context x 1 pipeline x 2 replicas\n"
            "            ranks    0-3 on h[1-2]  4-7 on h[3-4]\n"
            "            groups: tensor within a host, context across hosts, replicas across "
            "hosts\n"));
  CHECK(plan_json(plan)["layout"]["context_parallel_size"] == 2);
}

TEST_CASE("a plan tells who shares out experts, and where they are on several hosts") {
  config::JobConfig job;
  job.data.data_prefixes = {"/data/text"};
  job.model.architecture = "mixtral";
  job.topology.expert_parallel_size = 4;
  const auto plan = make_plan(job, kFourHosts, {"/opt/sortie-train", "/work", {}, {}, 0, {}});
  REQUIRE_MESSAGE(plan.has_value(), (plan ? "" : plan.error().message));
  const std::string text = plan_text(*plan);
  CHECK(
      has(text,
          "  layout    1 tensor x 1 pipeline x 8 replicas; experts: 1 tensor x 4 x 2 replicas\n"));
  CHECK(has(text, "replicas across hosts, experts across hosts, experts' replicas across hosts"));
  CHECK(plan_json(*plan)["layout"]["expert_parallel_size"] == 4);
}

TEST_CASE("data parallelism alone has no layout to draw") {
  const LaunchPlan plan = plan_of(kFourHosts, 1, 1);
  CHECK_FALSE(plan.mesh.has_value());
  CHECK_FALSE(has(plan_text(plan), "  layout "));
}

TEST_CASE("ranks that make no whole replica are an error that names the factors") {
  config::JobConfig job;
  job.data.data_prefixes = {"/data/text"};
  job.topology.tensor_parallel_size = 2;
  job.topology.pipeline_parallel_size = 3;
  const auto plan = make_plan(job, kFourHosts, {"/opt/sortie-train", "/work", {}, {}, 0, {}});
  REQUIRE_FALSE(plan.has_value());
  CHECK(has(plan.error().message,
            "a replica of the model takes 6 ranks = 2 (tensor_parallel_size) * 3 "
            "(pipeline_parallel_size), and 8 ranks are no multiple of that; use 6 or 12 ranks"));
}

}  // namespace
}  // namespace sortie::launcher
