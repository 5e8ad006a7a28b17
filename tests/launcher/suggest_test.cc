// Layouts ranked by predicted time: which are legal, which fit in memory, and how long a step
// takes.
#include "launcher/plan/suggest.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "common/config/load.h"
#include "tests/launcher/command_line.h"
#include "tests/support/temp_dir.h"
#include "tests/support/text.h"

namespace sortie::launcher {
namespace {

using test::has;

const std::vector<config::HostSlots> kPairOfHosts = {{"h1", {0, 1}}, {"h2", {0, 1}}};

config::JobConfig training_of_16() {
  config::JobConfig job;
  job.data.data_prefixes = {"/data/text"};
  job.model.num_layers = 4;
  job.model.sequence_length = 100;
  job.topology.global_batch_size = 16;
  return job;
}

/// A trainer whose ranks need 8 GiB / stages and send 4e9 bytes to their replicas and 1e9 in tensor
/// groups. A token takes 1e9 operations.
LauncherFacts with_fake_trainer() {
  LauncherFacts facts{"/opt/sortie/bin/sortie-train", "/work", {}, {}, 0, {}};
  facts.ask_trainer = [](const CostQuestion& question) -> Result<training::ModelCost> {
    const auto loaded = config::load_job_text(question.config_toml, "question");
    REQUIRE_MESSAGE(loaded.has_value(), (loaded ? "" : loaded.error().message));
    const config::TopologyConfig& topology = loaded->job.topology;
    const std::int64_t stages = topology.pipeline_parallel_size;
    training::ModelCost cost;
    cost.flops_per_token = 1e9;
    cost.memory = {{"bf16", {{"weights", (std::int64_t{8} << 30) / stages}}}};
    std::vector<training::ModelCost::Sent> sent;
    if (topology.tensor_parallel_size > 1) sent.push_back({"tensor", -1, 1'000'000'000});
    if (question.world_size > topology.tensor_parallel_size * stages)
      sent.push_back(
          {stages * topology.tensor_parallel_size > 1 ? "replicas" : "world", -1, 4'000'000'000});
    cost.stages.assign(static_cast<std::size_t>(stages), {{"bf16", 0, sent}});
    const auto micro = static_cast<double>(topology.gradient_accumulation_steps);
    const auto waiting = static_cast<double>(stages - 1);
    const bool zero_bubble = topology.pipeline_schedule == "zero_bubble";
    const auto parts = static_cast<double>(zero_bubble ? 3 : topology.pipeline_interleave);
    cost.bubble = waiting / (parts * micro + waiting);
    return cost;
  };
  return facts;
}

/// A step of 16 x 100 tokens takes 1.6e12 operations: 0.4 s on four such ranks.
const MeasuredRates kRates{1e12, 10e9, 10e9, "bf16"};

TEST_CASE("layouts that are legal are ranked by compute, bubble and what nothing hides") {
  const auto found =
      suggest_layouts(training_of_16(), kPairOfHosts, with_fake_trainer(), kRates, {});
  REQUIRE_MESSAGE(found, (found ? "" : found.error().message));
  CHECK(found->too_large == 0);
  CHECK(found->best.size() == 10);
  CHECK(found->precision == "bf16");
  for (std::size_t i = 1; i < found->best.size(); ++i)
    CHECK(found->best[i - 1].seconds() <= found->best[i].seconds());
  std::set<std::pair<std::int64_t, std::int64_t>> shapes;
  for (const Suggestion& one : found->best) {
    CHECK(one.micro_batch_size * one.accumulation * one.replicas == 16);
    CHECK(one.tensor * one.pipeline * one.replicas == 4);
    CHECK(one.tensor <= 2);  // slots of a host
    CHECK(one.compute >= doctest::Approx(0.4));
    shapes.insert({one.tensor, one.pipeline});
  }
  CHECK(shapes.size() > 1);
  // With four replicas each rank sends 4e9 bytes: a third within its host, and two thirds to the
  // other host over a link that both ranks of the host share. With full sharding the transfer
  // overlaps with all passes.
  for (const Suggestion& one : found->best)
    if (one.replicas == 4 && one.sharding == "full")
      CHECK(one.waits == doctest::Approx(4.0 / 3.0 / 10.0 + 16.0 / 3.0 / 10.0 - 0.4));
  const std::string text = suggestions_text(*found);
  CHECK(has(text, "legal layouts, the fastest by prediction in bf16\n"));
  CHECK(suggestions_json(*found)["best"].size() == 10);
}

TEST_CASE("pipelines are tried with each schedule that the rules allow") {
  config::JobConfig job = training_of_16();
  job.topology.pipeline_schedule = "zero_bubble";  // not legal without a pipeline
  const auto found = suggest_layouts(job, kPairOfHosts, with_fake_trainer(), kRates, {});
  REQUIRE_MESSAGE(found, (found ? "" : found.error().message));
  // The ten fastest layouts include zero-bubble pipelines, which wait less. None of these shards
  // its weights or interleaves its stages.
  std::size_t put_off = 0;
  for (const Suggestion& one : found->best) {
    if (!one.zero_bubble) continue;
    ++put_off;
    CHECK(one.pipeline > 1);
    CHECK(one.interleave == 1);
    CHECK(one.sharding != "full");
  }
  CHECK(put_off > 0);
  CHECK(has(suggestions_text(*found), ", zero bubble"));
  // A model that can not be cut into stages has layouts too.
  job.model.num_layers = 1;
  const auto whole = suggest_layouts(job, kPairOfHosts, with_fake_trainer(), kRates, {});
  REQUIRE_MESSAGE(whole, (whole ? "" : whole.error().message));
  CHECK(!whole->best.empty());
  for (const Suggestion& one : whole->best) CHECK(!one.zero_bubble);
}

TEST_CASE("context parallelism that the job asks for is tried, beside none") {
  config::JobConfig job = training_of_16();
  job.topology.context_parallel_size = 2;
  job.topology.micro_batch_size = 4;
  const auto found = suggest_layouts(job, kPairOfHosts, with_fake_trainer(), kRates, {});
  REQUIRE_MESSAGE(found, (found ? "" : found.error().message));
  std::set<std::int64_t> contexts;
  for (const Suggestion& one : found->best) {
    CHECK(one.tensor * one.pipeline * one.context * one.replicas == 4);
    CHECK(one.micro_batch_size * one.accumulation * one.replicas == 16);
    contexts.insert(one.context);
  }
  CHECK(contexts == std::set<std::int64_t>{1, 2});
  CHECK(has(suggestions_text(*found), ", context 2"));
}

TEST_CASE("layouts that take more than a host has are counted and left out") {
  const auto found = suggest_layouts(training_of_16(), kPairOfHosts, with_fake_trainer(), kRates,
                                     {std::uint64_t{9} << 30, 0});
  REQUIRE(found);
  CHECK(found->too_large > 0);
  CHECK(found->too_large < found->legal);
  for (const Suggestion& one : found->best) CHECK(one.pipeline >= 2);  // two ranks in 9 GiB
  CHECK(has(suggestions_text(*found), "of them too large for the hosts' memory"));
}

TEST_CASE("of a job on GPUs layouts have to fit those, and the hosts with what is left to them") {
  LauncherFacts facts = with_fake_trainer();
  facts.ask_trainer = [ask = facts.ask_trainer](const CostQuestion& question) {
    auto cost = ask(question);
    if (cost)
      cost->memory[0].parts.insert(
          cost->memory[0].parts.end(),
          {{"device", std::int64_t{1} << 30}, {"process", std::int64_t{2} << 30}});
    return cost;
  };
  // A rank needs 8 GiB / stages + 1 GiB on its GPU, and 2 GiB on the host: 4 GiB for the two ranks
  // of a host.
  const std::uint64_t gib = std::uint64_t{1} << 30;
  const auto all = suggest_layouts(training_of_16(), kPairOfHosts, facts, kRates, {4 * gib, 0});
  REQUIRE(all);
  CHECK(all->too_large == 0);
  CHECK(all->too_large_for_gpu == 0);
  CHECK(has(suggestions_text(*all), "the memory of the GPUs is not known"));
  CHECK(has(suggestions_text(*all), "GPU GiB\n"));
  const auto some =
      suggest_layouts(training_of_16(), kPairOfHosts, facts, kRates, {4 * gib, 6 * gib});
  REQUIRE(some);
  CHECK(some->too_large == 0);
  CHECK(some->too_large_for_gpu > 0);
  CHECK(some->too_large_for_gpu < some->legal);
  for (const Suggestion& one : some->best) {
    CHECK(one.pipeline >= 2);
    CHECK(one.gpu_memory_bytes == (std::int64_t{8} << 30) / one.pipeline + (std::int64_t{1} << 30));
  }
  const std::string text = suggestions_text(*some);
  CHECK(has(text, "of them too large for the GPUs' memory"));
  CHECK_FALSE(has(text, "hosts' memory"));
  CHECK_FALSE(has(text, "not known"));
  CHECK(suggestions_json(*some)["best"][0]["rank_gpu_memory_bytes"] ==
        some->best[0].gpu_memory_bytes);
  const auto none =
      suggest_layouts(training_of_16(), kPairOfHosts, facts, kRates, {3 * gib, 6 * gib});
  REQUIRE(none);
  CHECK(none->too_large == none->legal);
  CHECK(has(suggestions_text(*none), "none is left"));
}

TEST_CASE("what is missing for a suggestion is said") {
  config::JobConfig job = training_of_16();
  job.topology.global_batch_size = 7;
  job.topology.micro_batch_size = 0;
  const auto odd = suggest_layouts(job, {{"h1", {0, 1}}}, with_fake_trainer(), kRates, {});
  REQUIRE(odd);  // possible with stages and tensor groups, not with two replicas
  for (const Suggestion& one : odd->best) CHECK(one.replicas == 1);
  LauncherFacts nobody = with_fake_trainer();
  nobody.ask_trainer = {};
  CHECK(has(suggest_layouts(job, kPairOfHosts, nobody, kRates, {}).error().message,
            "it needs sortie-train"));
  job.runner.program = {"./mine"};
  CHECK(has(suggest_layouts(job, kPairOfHosts, with_fake_trainer(), kRates, {}).error().message,
            "a program of its own"));
  CHECK(has(check_rates({}, kPairOfHosts).error().message, "give --gflops, or --rates FILE"));
  CHECK(has(check_rates({1e12, 0, 0, ""}, kPairOfHosts).error().message, "--host-rate"));
  CHECK(has(check_rates({1e12, 1e9, 0, ""}, kPairOfHosts).error().message, "--link-rate"));
  CHECK(check_rates(kRates, kPairOfHosts));
  // A transfer that no rank does needs no rate and takes no time.
  const std::vector<config::HostSlots> apart = {{"h1", {0}}, {"h2", {0}}}, one = {{"h1", {0, 1}}};
  CHECK(has(check_rates({1e12, 0, 0, ""}, apart).error().message, "--link-rate"));
  CHECK(check_rates({1e12, 0, 1e8, ""}, apart));
  CHECK(check_rates({1e12, 1e9, 0, ""}, one));
  const auto same = [](const std::vector<config::HostSlots>& hosts, const MeasuredRates& known,
                       const MeasuredRates& all) {
    const auto a = suggest_layouts(training_of_16(), hosts, with_fake_trainer(), known, {});
    const auto b = suggest_layouts(training_of_16(), hosts, with_fake_trainer(), all, {});
    REQUIRE((a && b));
    CHECK(suggestions_json(*a) == suggestions_json(*b));
  };
  same(apart, {1e12, 0, 1e8, ""}, {1e12, 1e9, 1e8, ""});
  same(one, {1e12, 1e9, 0, ""}, {1e12, 1e9, 1e8, ""});
}

TEST_CASE("rates are read from reports of measurements, the slowest link of each kind") {
  const auto rates = parse_rates(
      "rates.json",
      R"({"schema":"sortie/bench-matmul/1","dtype":"f32","forward":{"tflop_s":1.0},"data_gradient":{"tflop_s":2.0},"weight_gradient":{"tflop_s":2.0}}
[0 a] {"schema":"sortie/bench-comm/1","links":{"beside_ns_per_byte":2.0,"pairs":[{"from":"a","to":"a","gbit_s":80},{"from":"a","to":"b","gbit_s":8},{"from":"b","to":"a","gbit_s":4}]}}

{"schema":"sortie/bench-copy/1"}
)");
  REQUIRE_MESSAGE(rates, (rates ? "" : rates.error().message));
  CHECK(rates->flop_s == doctest::Approx(1.5e12));
  CHECK(rates->precision == "f32");
  CHECK(rates->host_byte_s == doctest::Approx(10e9));
  CHECK(rates->link_byte_s == doctest::Approx(0.5e9));
  CHECK(rates->beside_s == doctest::Approx(2e-9));
  const auto wrong = parse_rates("rates.json", "{}\n");
  REQUIRE_FALSE(wrong);
  CHECK(has(wrong.error().message, "rates.json:1: no report of a measurement"));
}

TEST_CASE("steps of the model say more than products: passes by their size, and the update") {
  // Two ranks measured together: the slower one counts, in any order.
  const auto rates = parse_rates(
      "rates.json",
      R"({"schema":"sortie/bench-step/1","dtype":"f32","passes":[{"micro_batch_size":1,"tflop_s":1.0},{"micro_batch_size":4,"tflop_s":3.0}],"update":{"parameters":1000,"seconds":0.001}}
{"schema":"sortie/bench-step/1","dtype":"f32","passes":[{"micro_batch_size":4,"tflop_s":2.0},{"micro_batch_size":1,"tflop_s":1.5}],"update":{"parameters":1000,"seconds":0.002}}
{"schema":"sortie/bench-matmul/1","dtype":"bf16","forward":{"tflop_s":9.0},"data_gradient":{"tflop_s":9.0},"weight_gradient":{"tflop_s":9.0}}
)");
  REQUIRE_MESSAGE(rates, (rates ? "" : rates.error().message));
  CHECK(rates->precision == "f32");
  CHECK(flop_s_of(*rates, 1) == doctest::Approx(1e12));
  CHECK(flop_s_of(*rates, 2) == doctest::Approx(1.5e12));  // interpolated over log(size)
  CHECK(flop_s_of(*rates, 4) == doctest::Approx(2e12));
  CHECK(flop_s_of(*rates, 16) == doctest::Approx(2e12));
  CHECK(rates->update_s == doctest::Approx(2e-6));
  CHECK(flop_s_of(kRates, 16) == doctest::Approx(1e12));

  // A step of 1.6e12 operations on four ranks, and the update of each rank's parameters.
  MeasuredRates measured = kRates;
  measured.passes = {{1, 1e12}, {4, 2e12}};
  measured.update_s = 1e-6;
  measured.host_byte_s = measured.link_byte_s = 1e15;
  LauncherFacts facts = with_fake_trainer();
  facts.ask_trainer = [ask = facts.ask_trainer](const CostQuestion& question) {
    auto cost = ask(question);
    cost->trained_parameters = 400'000;
    return cost;
  };
  const auto found = suggest_layouts(training_of_16(), kPairOfHosts, facts, measured, {});
  REQUIRE_MESSAGE(found, (found ? "" : found.error().message));
  int checked = 0;
  for (const Suggestion& one : found->best) {
    if (one.pipeline > 1) continue;
    const double passes = one.micro_batch_size == 1   ? 0.4
                          : one.micro_batch_size == 2 ? 0.4 / 1.5
                                                      : 0.2;
    const double updated = one.sharding == "none"
                               ? 0.4 / static_cast<double>(one.tensor)
                               : 0.4 / static_cast<double>(one.tensor * one.replicas);
    CHECK(one.compute == doctest::Approx(passes + updated));
    ++checked;
  }
  CHECK(checked > 0);
}

TEST_CASE("plan --suggest asks the trainer beside it, and takes a job whose own layout is wrong") {
  const test::ScopedTempDir dir;
  // 8 sequences are no multiple of 4 for each of 4 ranks, and 3 ranks can not share 2 heads.
  test::write_text(dir / "job.toml",
                   "[topology]\nglobal_batch_size = 8\nmicro_batch_size = 4\n"
                   "tensor_parallel_size = 3\n[model]\nvocab_size = 256\nhidden_size = 64\n"
                   "num_layers = 2\nnum_attention_heads = 2\nsequence_length = 64\n"
                   "[data]\ndata_prefixes = [\"/data/text\"]\n");
  const std::vector<std::string> plan = {
      "plan",   dir.str("job.toml"), "--hosts", "h1,h2",    "--slots", "2",           "--suggest",
      "--json", "--gflops",          "50",      "--memory", "16",      "--link-rate", "0.1"};
  const testing::Finished missing = test::sortie(plan);
  CHECK(missing.code == 2);
  CHECK(has(missing.output, "how much a rank sends within its host is not known"));
  std::vector<std::string> whole = plan;
  whole.insert(whole.end(), {"--host-rate", "5"});
  const testing::Finished result = test::sortie(whole);
  REQUIRE_MESSAGE(result.code == 0, result.output);
  // On a busy machine it takes long enough to print progress to stderr first.
  const std::size_t begin = result.output.find('{');
  REQUIRE(begin != std::string::npos);
  const auto best = nlohmann::json::parse(result.output.substr(begin))["suggestions"]["best"];
  CHECK(best.size() > 4);
  std::set<std::int64_t> tensor;
  for (const auto& one : best) {
    CHECK(one["rank_memory_bytes"] > 1'000'000);
    CHECK(one["step_seconds"] > one["waiting_seconds"]);
    tensor.insert(one["tensor_parallel_size"].get<std::int64_t>());
  }
  CHECK(tensor.contains(2));
  // A job that no layout can make legal is refused as usual.
  const testing::Finished refused = test::sortie(
      {"plan", dir.str("job.toml"), "--suggest", "--set", "model.num_attention_heads=5"});
  CHECK(refused.code == 2);
  CHECK(has(refused.output, "num_attention_heads"));
}

}  // namespace
}  // namespace sortie::launcher
