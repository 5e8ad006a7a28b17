// The reliability part of a plan: the arithmetic, compared with published figures, and its text.
#include "launcher/plan/reliability.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "launcher/plan/plan.h"
#include "tests/launcher/command_line.h"

namespace sortie::launcher {
namespace {

using test::contains;

constexpr double kHourS = 3600;

double mttf_of(std::size_t hosts) {
  ReliabilityInputs in;
  in.hosts = hosts;
  return reliability(in).mttf;
}

TEST_CASE("mean time to failure, spares and intervals of clusters of some sizes") {
  struct Row {
    std::size_t hosts;
    double mttf_hours;
    std::size_t spares, spares_3_days;
    double minutes_1_s, minutes_30_s;  // Young's interval for a stall of that length
  };
  for (const Row& row :
       {Row{8, 461, 1, 2, 30, 166}, Row{32, 115, 2, 3, 15, 83}, Row{64, 58, 2, 4, 11, 59},
        Row{128, 29, 4, 7, 7.6, 42}, Row{1024, 3.6, 13, 31, 2.7, 14.7}}) {
    CAPTURE(row.hosts);
    const double mttf = mttf_of(row.hosts);
    CHECK(mttf / kHourS == doctest::Approx(row.mttf_hours).epsilon(0.02));
    CHECK(spares_for(mttf, 86400) == row.spares);
    CHECK(spares_for(mttf, 3 * 86400.0) == row.spares_3_days);
    CHECK(young_interval(1, mttf) / 60 == doctest::Approx(row.minutes_1_s).epsilon(0.06));
    CHECK(young_interval(30, mttf) / 60 == doctest::Approx(row.minutes_30_s).epsilon(0.02));
  }
  CHECK(useful_share(mttf_of(64), 60, 300, 1) == doctest::Approx(0.996).epsilon(0.001));
  CHECK(useful_share(mttf_of(64), 900, 3600, 300) == doctest::Approx(0.911).epsilon(0.001));
  CHECK(useful_share(mttf_of(1024), 60, 300, 1) == doctest::Approx(0.981).epsilon(0.001));
  CHECK(useful_share(mttf_of(1024), 900, 3600, 300) == doctest::Approx(0.731).epsilon(0.001));
  CHECK(useful_share(100, 900, 3600, 300) == 0);
}

TEST_CASE("Young's interval is the best one, to first order") {
  const double mttf = mttf_of(64), stall = 5;
  const double best = young_interval(stall, mttf);
  for (const double factor : {0.5, 0.8, 1.25, 2.0})
    CHECK(useful_share(mttf, 60, best, stall) > useful_share(mttf, 60, factor * best, stall));
}

TEST_CASE("spares: the fewest that suffice, of many failures too") {
  for (const double mean : {0.001, 0.5, 3.0, 40.0, 650.0, 5000.0}) {
    CAPTURE(mean);
    const auto spares = static_cast<double>(spares_for(1, mean));
    CHECK(spares >= mean - 1);
    CHECK(spares <= mean + 3 * std::sqrt(mean) + 2);
  }
}

TEST_CASE("what a save costs: of the copy beside training, or of all of it") {
  ReliabilityInputs in;
  in.hosts = 64;
  in.ranks = 512;
  in.save_bytes = 1.024e12;
  in.save_bandwidth = 10e9;
  Reliability found = reliability(in);
  CHECK(*found.stall == doctest::Approx(102.4));
  in.async_save = true;
  found = reliability(in);
  CHECK(*found.stall == doctest::Approx(1.0));
  CHECK(*found.save == doctest::Approx(102.4));
  CHECK(*found.interval == doctest::Approx(young_interval(1.0, found.mttf)));
  in.save_bytes = 1e14;  // a save takes longer than Young's interval
  found = reliability(in);
  CHECK(*found.interval == doctest::Approx(1e4));
  in.stall = 7;
  CHECK(*reliability(in).stall == 7);
  in.stall.reset();
  in.save_bytes.reset();
  CHECK_FALSE(reliability(in).useful);
}

TEST_CASE("plan says what it assumed and what it was told") {
  const auto plan = [](const std::string& options) {
    return test::shell(SORTIE_BINARY + std::string(" plan --hosts 'h[1-64]' --slots 8 ") + options +
                       " --set 'recovery.spares=[\"s[1-2]\"]' -- ./my_mpi");
  };
  CHECK_FALSE(test::has(plan("").output, "reliability"));
  const std::string text = plan("--reliability").output;
  CHECK(
      contains(text,
               "\nreliability\n  failures  6.5 per 1000 host-days (assumed; --failures, "
               "--mttf-node-hours): on 64 hosts one in 57.7 h\n"
               "  saving    the cost of a save is not known; give the seconds for which it blocks "
               "training (--save-time)\n"
               "  spares    2 for 99 of 100 times of 24.0 h until one is replaced; "
               "recovery.spares has 2\n"));
  const std::string told = plan("--mttf-node-hours 2400 --save-time 5 --step-time 2").output;
  CHECK(contains(told, "  failures  10 per 1000 host-days: on 64 hosts one in 37.5 h\n"));
  CHECK(contains(told, "  saving    a save blocks training for 5 s (--save-time)\n"));
  CHECK(contains(told, "  interval  save every 19m22s = 581 steps of 2 s (Young)\n"));
  CHECK(contains(told, "with restarts of 1m00s (assumed; --restart-time)\n"));
  const auto parsed = nlohmann::json::parse(plan("--json --failures 10 --save-time 5").output);
  CHECK(parsed["reliability"]["inputs"]["failures_assumed"] == false);
  CHECK(parsed["reliability"]["mttf_s"].get<double>() / kHourS == doctest::Approx(37.5));
  CHECK(parsed["reliability"]["useful_share"].get<double>() > 0.98);
  CHECK(parsed["schema"] == "sortie/plan/1");
  CHECK(plan("--failures 0").code == 2);
  CHECK(plan("--save-time -1").code == 2);
  CHECK(plan("--failures 5 --mttf-node-hours 30").code == 2);  // the same quantity
}

TEST_CASE("of a training job the plan knows the checkpoint") {
  LaunchPlan plan;
  plan.hosts.resize(2);
  plan.world_size = 2;
  plan.model = ModelPlan{};
  plan.model->cost.parameters = 1000;
  plan.model->cost.trained_parameters = 900;
  config::JobConfig job;
  job.trainer.save_interval = 50;
  job.trainer.async_save = false;
  ReliabilityOptions options;
  options.step_time = 2;
  const ReliabilityInputs in = reliability_inputs(plan, job, options);
  CHECK(*in.save_bytes == 900 * 12 + 100 * 4);
  config::JobConfig narrow = job;
  narrow.optimizer.moments = "bf16";
  CHECK(*reliability_inputs(plan, narrow, options).save_bytes == 900 * 8 + 100 * 4);
  const Reliability found = reliability(in);
  CHECK(found.interval_set == 100);
  CHECK(found.useful_set);
  CHECK(*found.interval >= 2);  // at most one save per step
  CHECK(contains(reliability_text(found), "% with trainer.save_interval = 50 steps = 1m40s\n"));
}

}  // namespace
}  // namespace sortie::launcher
