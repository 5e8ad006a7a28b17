#include "common/config/outer.h"

#include <doctest/doctest.h>

#include <functional>

using namespace sortie::config;

namespace {

JobConfig job_of(const char* level) {
  JobConfig job;
  job.topology.gradient_compression = level;
  return job;
}

std::vector<HostSlots> hosts_of_sites(
    std::initializer_list<std::pair<const char*, std::size_t>> sites) {
  std::vector<HostSlots> hosts;
  for (const auto& [site, slots] : sites)
    hosts.push_back(
        {"h" + std::to_string(hosts.size()), std::vector<int>(slots), std::string(site)});
  return hosts;
}

/// "rule first-key: message" of each violation, one per line.
std::string outer_text(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& violation : violations)
    text += (text.empty() ? "" : "\n") + std::string(violation.rule) + " " +
            violation.keys.front() + ": " + violation.message;
  return text;
}

}  // namespace

TEST_CASE("each level has its steps, wire, fragments and delay") {
  struct Row {
    const char* level;
    std::int64_t every;
    OuterWire wire;
    bool feedback;
    std::int64_t fragments, overlap;
    double mix;
  };
  const Row rows[] = {
      {"low", 20, OuterWire::bf16, false, 1, 0, 0.0},
      {"weak", 20, OuterWire::bf16, false, 1, 0, 0.0},
      {"auto", 50, OuterWire::e4m3, false, 1, 0, 0.0},
      {"medium", 50, OuterWire::e4m3, false, 1, 0, 0.0},
      {"high", 100, OuterWire::e2m1, true, 4, 5, 0.5},
      {"strong", 100, OuterWire::e2m1, true, 4, 5, 0.5},
  };
  for (const Row& row : rows) {
    CAPTURE(row.level);
    const OuterSettings outer = resolve_outer(job_of(row.level), 2);
    CHECK(outer.rounds);
    CHECK(outer.every == row.every);
    CHECK(outer.wire == row.wire);
    CHECK(outer.error_feedback == row.feedback);
    CHECK(outer.fragments == row.fragments);
    CHECK(outer.overlap == row.overlap);
    CHECK(outer.mix == row.mix);
    CHECK(outer.momentum == 0.9);
    CHECK(outer.nesterov);
    CHECK(!outer.equal_steps);
    CHECK(outer.weight == OuterWeight::tokens);
  }
  for (const char* level : {"none", "no"}) {
    const OuterSettings plain = resolve_outer(job_of(level), 3);
    CHECK(!plain.rounds);
    CHECK(plain.every == 1);
    CHECK(plain.wire == OuterWire::f32);
    CHECK(!plain.error_feedback);
    CHECK(gradient_compression_level(job_of(level).topology, 3) == "none");
  }
  CHECK(gradient_compression_level(job_of("strong").topology, 2) == "high");
  CHECK(gradient_compression_level(job_of("auto").topology, 1) == "none");
  CHECK(gradient_compression_level(job_of("auto").topology, 2) == "medium");
}

TEST_CASE("the outer learning rate and the fewest sites follow their number") {
  const JobConfig job = job_of("medium");
  CHECK(resolve_outer(job, 1).learning_rate == 0.6);
  CHECK(resolve_outer(job, 2).learning_rate == 0.6);
  CHECK(resolve_outer(job, 3).learning_rate == 0.7);
  for (const auto& [sites, fewest] : {std::pair{0, 1}, {1, 1}, {2, 1}, {3, 2}, {4, 2}, {7, 4}})
    CHECK(resolve_outer(job, sites).min_sites == fewest);
}

TEST_CASE("a key of [outer] wins over its level, and defaults follow what is set") {
  JobConfig job = job_of("high");
  job.outer.every = 12;
  CHECK(resolve_outer(job, 2).overlap == 2);  // 12 / 4 - 1: one fragment is under way at a time
  job.outer.overlap = 0;
  CHECK(resolve_outer(job, 2).mix == 0.0);
  job.outer.wire = "e4m3";
  CHECK(!resolve_outer(job, 2).error_feedback);
  job.outer.wire = "e3m0";
  CHECK(resolve_outer(job, 2).error_feedback);
  job.outer.error_feedback = "off";
  CHECK(!resolve_outer(job, 2).error_feedback);
  job = job_of("high");
  job.model.num_layers = 3;
  CHECK(resolve_outer(job, 2).fragments == 3);
  job.outer.every = 2;
  CHECK(resolve_outer(job, 2).fragments == 2);
  CHECK(resolve_outer(job, 2).overlap == 0);
  job = job_of("low");
  job.outer = {.every = 40, .learning_rate = 0.4, .momentum = 0.0, .nesterov = false};
  job.outer.min_sites = 2;
  job.outer.weight = "uniform";
  job.outer.start_after = 7;
  job.outer.mix = 0.25;
  const OuterSettings outer = resolve_outer(job, 2);
  CHECK(outer.every == 40);
  CHECK(outer.learning_rate == 0.4);
  CHECK(outer.momentum == 0.0);
  CHECK(!outer.nesterov);
  CHECK(outer.min_sites == 2);
  CHECK(outer.weight == OuterWeight::uniform);
  CHECK(outer.start_after == 7);
  CHECK(outer.mix == 0.25);
}

TEST_CASE("one site has rounds only where it is told to") {
  JobConfig job;
  CHECK(!resolve_outer(job, 0).rounds);
  CHECK(!resolve_outer(job, 1).rounds);
  job.outer.every = 6;
  const OuterSettings ahead = resolve_outer(job, 1);
  CHECK(ahead.rounds);
  CHECK(ahead.every == 6);
  CHECK(ahead.wire == OuterWire::f32);
  CHECK(ahead.fragments == 1);
  CHECK(resolve_outer(job_of("low"), 1).rounds);
  CHECK(!resolve_outer(job_of("none"), 1).rounds);
}

TEST_CASE("bytes of a value count its share of the scale") {
  CHECK(bytes_per_value(OuterWire::f32, 32) == 4.0);
  CHECK(bytes_per_value(OuterWire::bf16, 32) == 2.0);
  CHECK(bytes_per_value(OuterWire::int8, 32) == 1.125);
  CHECK(bytes_per_value(OuterWire::e4m3, 32) == 1.03125);
  CHECK(bytes_per_value(OuterWire::e5m2, 16) == 1.0625);
  CHECK(bytes_per_value(OuterWire::e2m1, 32) == 0.53125);
  CHECK(bytes_per_value(OuterWire::e3m0, 64) == 0.515625);
  for (const char* name : {"f32", "bf16", "int8", "e4m3", "e5m2", "e2m1", "e3m0"})
    CHECK(outer_wire_name(parse_outer_wire(name).value()) == name);
  CHECK(parse_outer_wire("fp8").error().message ==
        "\"fp8\" is no number format between sites; use f32, bf16, int8, e4m3, e5m2, e2m1, e3m0");
}

TEST_CASE("rules of rounds name the numbers and what to do") {
  struct Row {
    std::function<void(JobConfig&)> change;
    const char* error;
  };
  const Row rows[] = {
      {[](JobConfig& job) {
         job.topology.gradient_compression = "no";
         job.outer.every = 5;
       },
       "W1 outer.every: topology.gradient_compression = \"no\" is plain data parallelism, which "
       "has no rounds; remove it, or use low, medium or high"},
      {[](JobConfig& job) { job.outer.mix = -0.5; },
       "W2 outer.mix: -0.5 is no share; use 0 to below 1, or -1 for the default"},
      {[](JobConfig& job) {
         job.outer.every = 3;
         job.outer.fragments = 4;
       },
       "W2 outer.fragments: 4 fragments in a round of 3 steps would be more than one a step; use "
       "at most 3"},
      {[](JobConfig& job) { job.outer.fragments = job.model.num_layers + 1; },
       "W2 outer.fragments: a fragment has a layer at least, and the model has 4; use at most 4 "
       "fragments"},
      {[](JobConfig& job) {
         job.outer.every = 20;
         job.outer.fragments = 4;
         job.outer.overlap = 5;
       },
       "W2 outer.overlap: an exchange that may take 5 steps would meet the next one, 5 steps after "
       "it = 20 (every) / 4 (fragments); use at most 4"},
      {[](JobConfig& job) {
         job.outer.wire = "f32";
         job.outer.error_feedback = "on";
       },
       "W3 outer.error_feedback: f32 loses nothing that could be sent later; use \"auto\""},
      {[](JobConfig& job) { job.outer.block = 40; },
       "W3 outer.block: 40 is no multiple of 16, the values of the widest vectors; use 32 or 48"},
      {[](JobConfig& job) {
         job.outer.every = 30;
         job.outer.start_after = 80;
         job.trainer.train_iterations = 100;
       },
       "W4 outer.every: the first round would end after 110 steps = 80 (start_after) + 30 (every), "
       "and the run has 100; lower it, or train longer"},
      {[](JobConfig& job) {
         job.outer.port = 65533;
         job.topology.tensor_parallel_size = job.topology.pipeline_parallel_size = 2;
       },
       "W9 outer.port: 4 leaders of a site, one for each part of the model, use the ports from "
       "65533 on, and 65535 is the last one; use at most 65532"},
  };
  CHECK(outer_text(validate(job_of("high"))) == "");
  for (const Row& row : rows) {
    JobConfig job;
    job.trainer.train_iterations = 1000;
    row.change(job);
    CHECK(outer_text(validate(job)) == row.error);
  }
}

TEST_CASE("rules of sites need their hosts") {
  JobConfig job;
  job.trainer.train_iterations = 1000;
  job.topology.micro_batch_size = 2;
  const auto check = [&](std::initializer_list<std::pair<const char*, std::size_t>> sites) {
    return outer_text(check_sites(job, hosts_of_sites(sites)));
  };
  CHECK(check({{"", 2}, {"", 2}}) == "");
  CHECK(check({{"oslo", 2}, {"rome", 2}}) == "");
  CHECK(check({{"oslo", 2}, {"rome", 4}}) ==
        "W5 topology.global_batch_size: site oslo would train 4 sequences a step and site rome 8; "
        "set global_batch_size, of all sites, and leave gradient_accumulation_steps out");
  job.topology.global_batch_size = 16;
  CHECK(check({{"oslo", 2}, {"rome", 4}}) == "");
  CHECK(check({{"oslo", 2}, {"rome", 2}, {"bonn", 2}}) ==
        "W5 topology.global_batch_size: 16 sequences over all sites can not be shared evenly by 3 "
        "of them; use 15 or 18");
  CHECK(
      check({{"oslo", 2}, {"rome", 3}}) ==
      "W6 topology.global_batch_size: site rome, with 3 ranks and a batch of 8 sequences = 16 / 2 "
      "(sites): 8 is no multiple of 6 = 2 (micro_batch_size) * 3 (ranks), so "
      "gradient_accumulation_steps is no whole number; use 6 or 12");
  job.topology.tensor_parallel_size = 2;
  CHECK(
      check({{"oslo", 2}, {"rome", 3}})
          .starts_with("W6 topology.tensor_parallel_size: site rome, with 3 ranks and a batch of 8 "
                       "sequences = 16 / 2 (sites): a replica of the model takes 2 ranks"));
  CHECK(check({{"oslo", 2}, {"rome", 4}}) == "");
  job.outer.min_sites = 3;
  CHECK(check({{"oslo", 2}, {"rome", 4}}) ==
        "W8 outer.min_sites: 3 sites can never be there, the hosts have 2; use at most that");
  job.outer.min_sites = 0;
  job.trainer.train_iterations = 49;
  CHECK(
      check({{"oslo", 2}, {"rome", 4}}) ==
      "W4 outer.every: the first round would end after 50 steps, and the run has 49; lower it, or "
      "train longer");
  job.outer.overlap = 3;
  const std::string no_site =
      ": the hosts have no site, and rounds are held between sites; write site=NAME in the host "
      "lines (one name for all is one site), or remove this key";
  CHECK(check({{"", 2}}) == "W1 outer.overlap" + no_site);
  JobConfig level;
  level.trainer.train_iterations = 1000;
  level.topology.gradient_compression = "high";
  CHECK(outer_text(check_sites(level, hosts_of_sites({{"", 2}}))) ==
        "W1 topology.gradient_compression" + no_site);
  CHECK(check({{"oslo", 2}}) ==
        "W1 outer.overlap: hosts of one site train without rounds, unless outer.every asks for "
        "them; set it, write site=NAME in the host lines, or remove this key");
}

TEST_CASE("what is of one world is refused for several sites") {
  struct Row {
    std::function<void(JobConfig&)> change;
    const char* key;
  };
  const Row rows[] = {
      {[](JobConfig& job) { job.topology.batch_rampup_start = 2; }, "topology.batch_rampup_start"},
      {[](JobConfig& job) { job.data.sampler = "scaling"; }, "data.sampler"},
      {[](JobConfig& job) { job.trainer.on_nonfinite = "rollback 10"; }, "trainer.on_nonfinite"},
      {[](JobConfig& job) { job.trainer.on_loss_spike = "rollback 1"; }, "trainer.on_loss_spike"},
      {[](JobConfig& job) { job.trainer.on_replica_mismatch = "rollback 1"; },
       "trainer.on_replica_mismatch"},
      {[](JobConfig& job) { job.trainer.memory_checkpoint_interval = 10; },
       "trainer.memory_checkpoint_interval"},
      {[](JobConfig& job) { job.model.moe.bias_update_rate = 0.001; },
       "model.moe.bias_update_rate"},
      {[](JobConfig& job) { job.model.fp8_scaling = "delayed"; }, "model.fp8_scaling"},
      {[](JobConfig& job) { job.runner.master_addr = "10.0.0.1"; }, "runner.master_addr"},
      {[](JobConfig& job) { job.optimizer.name = "demo"; }, "optimizer.name"},
      {[](JobConfig& job) { job.runner.network.tunnel = "wireguard"; }, "runner.network.tunnel"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.key);
    JobConfig job;
    job.trainer.train_iterations = 1000;
    row.change(job);
    const auto two = check_sites(job, hosts_of_sites({{"a", 1}, {"b", 1}}));
    REQUIRE(two.size() == 1);
    CHECK(two.front().rule == "W7");
    CHECK(two.front().keys.front() == row.key);
    CHECK(check_sites(job, hosts_of_sites({{"a", 1}, {"a", 1}})).empty());
  }
}

TEST_CASE("containers of several sites need a network on which the leaders reach each other") {
  const std::vector<HostSlots> one = {{"h01", {0}, "oslo"}};
  const std::vector<HostSlots> two = {{"h01", {0}, "oslo"}, {"h02", {0}, "rome"}};
  JobConfig job;
  job.trainer.train_iterations = 1000;
  job.runner.container.engine = "docker";
  job.runner.container.image = "busybox";
  const auto text_of = [&](const char* network, const char* route) {
    job.runner.container.network = network;
    job.outer.route = route;
    CHECK(outer_text(check_sites(job, one)) == "");
    return outer_text(check_sites(job, two));
  };
  CHECK(text_of("host", "direct") == "");
  CHECK(text_of("host", "launcher") == "");
  CHECK(text_of("macvlan", "direct") == "");  // other hosts may reach it
  CHECK(
      text_of("none", "direct") ==
      "W10 runner.container.network: \"none\" keeps the leaders of the sites from each other; use "
      "\"host\"");
  for (const char* network : {"none", "macvlan"})
    CHECK(
        text_of(network, "launcher") ==
        fmt::format("W10 runner.container.network: \"{}\" keeps the leaders of the sites from each "
                    "other, also through the launcher, whose streams arrive at 127.0.0.1 of the "
                    "host; use \"host\"",
                    network));
  job.runner.program = {"true"};  // it exchanges nothing
  CHECK(text_of("none", "direct") == "");
}

TEST_CASE("a site's share of the batch is what its world has") {
  TopologyConfig topology;
  topology.global_batch_size = 12;
  CHECK(topology_of_site(topology, 3).global_batch_size == 4);
  CHECK(topology_of_site(topology, 1).global_batch_size == 12);
}
