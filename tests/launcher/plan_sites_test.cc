#include "launcher/plan/plan_sites.h"

#include <doctest/doctest.h>
#include <fmt/core.h>
#include <stdlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"

using namespace sortie;
using namespace sortie::launcher;

namespace {

/// 124 million parameters, one second per step, two sites, no round trip, a codec that takes no
/// time.
OuterLoad gpt2_load() {
  return {.elements = 124e6, .step_seconds = 1.0, .codec_byte_s = 0.0};
}

config::OuterSettings settings_of(const char* level, std::int64_t sites = 2) {
  config::JobConfig job;
  job.topology.gradient_compression = level;
  job.model.num_layers = 12;
  return config::resolve_outer(job, sites);
}

SiteLink measured_link(const char* from, const char* to, double mbit_s, double time) {
  return {.from = from,
          .to = to,
          .from_host = fmt::format("{}1", from),
          .to_host = fmt::format("{}1", to),
          .works = true,
          .reached = true,
          .error = "",
          .byte_s = mbit_s * 125000.0,
          .round_trip = 0.02,
          .loss = 0.001,
          .mtu = 1500,
          .port = 51000,
          .time = time};
}

SitePlan site_plan(const char* name, std::size_t ranks, std::int64_t parameters) {
  SitePlan site{name, {{fmt::format("{}1", name), std::vector<int>(ranks), name}}, {}};
  site.plan.world_size = static_cast<std::uint32_t>(ranks);
  site.plan.model.emplace();
  site.plan.model->cost.trained_parameters = parameters;
  site.plan.model->asked.threads = 2;
  return site;
}

}  // namespace

TEST_CASE("rates that 90 % of useful time need, as worked by hand") {
  const OuterLoad load = gpt2_load();
  const auto mbit = [&](const config::OuterSettings& settings) {
    return *rate_for(settings, load, 0.9) * 8e-6;
  };
  CHECK(mbit(settings_of("none")) == doctest::Approx(35712.0));  // 8 x 124e6 x 4 / (1 / 9)
  CHECK(mbit(settings_of("low")) == doctest::Approx(892.8));
  CHECK(mbit(settings_of("medium")) == doctest::Approx(184.14).epsilon(1e-4));
  config::OuterSettings high = settings_of("high");
  // Four fragments, each five steps late, so 20 s of 31 s are hidden.
  CHECK(mbit(high) == doctest::Approx(527e6 / (20.0 + 100.0 / 9.0) / 1e6));
  high.overlap = 0;
  CHECK(mbit(high) == doctest::Approx(47.43));
  high.fragments = 1;
  high.overlap = 100;
  CHECK(
      predict_outer(
          high, {.elements = 124e6, .step_seconds = 1.0, .byte_s = 5.27e6 / 8, .codec_byte_s = 0.0})
          .useful == doctest::Approx(1.0));
}

TEST_CASE("time and useful share of a round") {
  OuterLoad load = {.elements = 3e6, .step_seconds = 0.1, .byte_s = 50e6 / 8, .codec_byte_s = 0.0};
  // 3 million parameters, 0.1 s a step, 50 Mbit/s.
  CHECK(predict_outer(settings_of("medium"), load).useful == doctest::Approx(0.910).epsilon(1e-3));
  CHECK(predict_outer(settings_of("none"), load).useful == doctest::Approx(0.0495).epsilon(1e-3));
  config::OuterSettings high = settings_of("high");
  CHECK(predict_outer(high, load).useful == 1.0);
  high.overlap = 0;
  CHECK(predict_outer(high, load).useful == doctest::Approx(0.975).epsilon(1e-3));
  const OuterPrediction medium = predict_outer(settings_of("medium"), load);
  CHECK(medium.bytes == doctest::Approx(3.09375e6));
  CHECK(medium.exchange == doctest::Approx(0.495));
  CHECK(medium.round == doctest::Approx(5.495));
  // Hidden time is at most the time of the exchange. Round trips count for each fragment.
  load.round_trip = 0.5;
  CHECK(predict_outer(high, load).exchange == doctest::Approx(3e6 * 0.53125 * 8 / 50e6 + 8.0));
  CHECK(!rate_for(settings_of("none"), load, 0.9));
  load.sites = 8;
  CHECK(round_bytes(high, load) == doctest::Approx(1.75 * 3e6 * 0.53125));
  load.sites = 1;
  CHECK(predict_outer(high, load).useful == 1.0);
  // Codec: 2 (M - 1) / M + 1 / M + 1 passes over the f32 of a leader's part.
  load = {.elements = 8e6,
          .leaders = 2,
          .step_seconds = 1.0,
          .byte_s = 1e12,
          .codec_byte_s = 1e9,
          .threads = 4};
  CHECK(predict_outer(settings_of("medium"), load).exchange ==
        doctest::Approx(2.5 * 16e6 / 4e9).epsilon(1e-2));
  CHECK(predict_outer(settings_of("none"), load).exchange == doctest::Approx(3.2e-5));
}

TEST_CASE("the smallest level that trains 90 % of the time") {
  config::JobConfig job;
  job.model.num_layers = 12;
  OuterLoad load = gpt2_load();
  const auto smallest = [&](double mbit_s) {
    load.byte_s = mbit_s * 125000.0;
    return smallest_level(levels_of(job, 2), load);
  };
  CHECK(smallest(36000) == "none");
  CHECK(smallest(35000) == "low");
  CHECK(smallest(880) == "medium");
  CHECK(smallest(180) == "high");
  CHECK(smallest(16) == "");
  CHECK(levels_of(job, 2).size() == 4);
  job.outer.every = 77;
  REQUIRE(levels_of(job, 2).size() == 5);
  CHECK(levels_of(job, 2).back().level == "configured");
  CHECK(levels_of(job, 2).back().settings.every == 77);
  CHECK(smallest(180) == "high");  // the levels keep their own defaults
}

TEST_CASE("a leader's memory") {
  const OuterLoad load = {.elements = 100e6, .leaders = 2};
  const OuterMemory high = outer_memory(settings_of("high"), load);
  CHECK(high.state == 400e6);
  CHECK(high.error_feedback == 200e6);
  CHECK(high.exchange == 100e6);
  const OuterMemory none = outer_memory(settings_of("none"), load);
  CHECK(none.state == 0.0);
  CHECK(none.error_feedback == 0.0);
  CHECK(none.exchange == 400e6);
}

TEST_CASE("of what was measured the newest counts, between hosts of the job") {
  const SiteLink old = measured_link("oslo", "rome", 40, 100),
                 fresh = measured_link("oslo", "rome", 50, 200);
  SiteLink other = measured_link("oslo", "rome", 999, 300);
  other.to_host = "elsewhere";
  const std::vector<config::HostSlots> hosts = {{"oslo1", {0}, "oslo"}, {"rome1", {0}, "rome"}};
  CHECK(links_between({fresh, old, other}, hosts) == std::vector<SiteLink>{fresh});
  CHECK(links_between({fresh}, {{"oslo1", {0}, "rome"}, {"rome1", {0}, "oslo"}}).empty());
  CHECK(with_links({old, other}, {fresh}) == std::vector<SiteLink>{fresh, other});
  CHECK(with_links({}, std::vector<SiteLink>(1, old)).size() == 1);

  char folder_name[] = "/tmp/sortie-test-XXXXXX";
  REQUIRE(mkdtemp(folder_name) != nullptr);
  const std::filesystem::path file =
      std::filesystem::path(folder_name) / "state" / "site_links.json";
  CHECK(read_site_links(file).value().empty());
  REQUIRE(keep_site_links(file, {old, other}));
  REQUIRE(keep_site_links(file, {fresh}));
  const auto kept = read_site_links(file).value();
  REQUIRE(kept.size() == 2);
  CHECK(kept[0].byte_s == doctest::Approx(fresh.byte_s));
  CHECK(kept[0].time == 200);
  CHECK(kept[1].to_host == "elsewhere");
  REQUIRE(write_file_atomic(file, "{\"schema\": \"sortie/site-links/1\", \"links\": [{}]}"));
  CHECK(read_site_links(file).error().message ==
        file.string() + ": no measured link: from; remove the file and run `sortie check` again");
  REQUIRE(keep_site_links(file, {fresh}));  // an unreadable file is replaced
  CHECK(read_site_links(file).value().size() == 1);
  std::filesystem::remove_all(folder_name);
  nlohmann::json object = site_link_json(fresh);
  object["loss"] = 1.5;
  CHECK(parse_site_link(object).error().message == "no measured link: loss");
  object = site_link_json(fresh);
  object["from"] = "../oslo";
  CHECK(parse_site_link(object).error().message == "no measured link: the name of a site");
}

TEST_CASE("the plan of sites says what was measured, and else what to run") {
  config::JobConfig job;
  job.model.num_layers = 12;
  const std::vector<SitePlan> plans = {site_plan("oslo", 2, 3'000'000),
                                       site_plan("rome", 4, 3'000'000)};
  std::vector<config::HostSlots> hosts;
  for (const SitePlan& site : plans) hosts.push_back(site.hosts.front());
  SiteOptions options{.check_command = "sortie check geo.toml --slots 2"};
  const auto text_of = [&](const std::vector<SiteLink>& known) {
    return sites_text(plan_between_sites(job, hosts, plans, known, options));
  };
  std::string text = text_of({});
  CHECK(text.contains("oslo          1 host, 2 ranks"));
  CHECK(
      text.contains("oslo -> rome, rome -> oslo: not measured; run `sortie check geo.toml --slots "
                    "2`, or give --site-rate 100Mbit/s"));
  CHECK(text.contains("give --step-time SECONDS"));
  CHECK(!text.contains("%  "));
  options.step_time = 0.1;
  const SiteLink there = measured_link("oslo", "rome", 50, 0),
                 back = measured_link("rome", "oslo", 80, 0);
  text = text_of({there, back});
  CHECK(
      text.contains("oslo -> rome  50 Mbit/s, round trip 20 ms, 0.1 % sent again, MTU 1500  "
                    "(1970-01-01 00:00 UTC, oslo1 -> rome1)"));
  CHECK(text.contains("* medium      50 steps, e4m3"));
  CHECK(text.contains("topology.gradient_compression = \"high\" is the smallest level"));
  CHECK(
      text.contains("memory of each of 1 leader a site: outer weights and momentum 24.0MB, 24.0MB "
                    "while they exchange"));
  const auto json = sites_json(plan_between_sites(job, hosts, plans, {there, back}, options));
  CHECK(json["mbit_s"].get<double>() == doctest::Approx(50.0));
  CHECK(json["smallest_level"] == "high");
  CHECK(json["levels"].size() == 4);
  CHECK(json["not_measured"].empty());
  SiteLink dead = back;
  dead.works = dead.reached = false;
  dead.error = "no answer within 2000 ms";
  text = text_of({there, dead});
  CHECK(text.contains("rome -> oslo  no way: no answer within 2000 ms"));
  CHECK(text.contains("rome -> oslo: not measured"));
  options.byte_s = 4e9;
  options.round_trip = 0.0;
  CHECK(text_of({}).contains("topology.gradient_compression = \"none\" is the smallest level"));
}
