// The options of `sortie plan` about failures, layouts and sites.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "common/base/command_name.h"
#include "common/base/json_text.h"
#include "launcher/check/comm.h"
#include "launcher/cli/verb.h"
#include "launcher/copy/progress.h"
#include "launcher/plan/plan_sites.h"
#include "launcher/plan/suggest.h"

namespace sortie::launcher {
using OrderedJson = nlohmann::ordered_json;

void add_reliability_options(CLI::App& app, AskedReliability& asked) {
  app.add_flag(
      "--reliability", asked.wanted,
      "Also mean time to failure, how often to save, spares, share of useful time; implied "
      "by each of the six options that follow");
  const auto number = [&app](const char* name, std::optional<double>& value, const char* help,
                             double least, double most) {
    return app.add_option(name, value, help)->check(CLI::Range(least, most));
  };
  ReliabilityOptions& options = asked.options;
  CLI::Option* const failures = number(
      "--failures", options.failures,
      "Failures of hosts per 1000 host-days (6.5, as a large cluster has reported)", 1e-6, 1e6);
  number("--mttf-node-hours", options.mttf_hours,
         "The same as mean hours between failures of one host", 1e-3, 1e9)
      ->excludes(failures);
  number("--save-bandwidth", options.save_bandwidth,
         "GB/s at which all ranks together write a checkpoint (1)", 1e-6, 1e6);
  number("--save-time", options.save_time, "Seconds for which a save blocks training, if known",
         1e-6, 1e6);
  number("--restart-time", options.restart_time,
         "Seconds from a failure to the next first step (60)", 0, 1e6);
  number("--step-time", options.step_time,
         "Seconds of a step; also prints save intervals in steps, and how long several sites wait "
         "for each other",
         1e-6, 1e6);
}

bool wants_reliability(const AskedReliability& asked) {
  const ReliabilityOptions& options = asked.options;
  return asked.wanted || options.failures || options.mttf_hours || options.save_bandwidth ||
         options.save_time || options.restart_time || options.step_time;
}

void add_suggest_options(CLI::App& app, AskedSuggestions& asked) {
  CLI::Option* wanted =
      app.add_flag("--suggest", asked.wanted,
                   "Instead of the plan, show the possible layouts for these hosts and this batch, "
                   "fastest first, predicted from the rates below");
  app.add_option("--rates", asked.rates_file,
                 "File with the output of sortie-train bench step --json and bench comm --links "
                 "--json; the options below override it")
      ->needs(wanted);
  const auto number = [&](const char* name, std::optional<double>& value, const char* help) {
    app.add_option(name, value, help)->check(CLI::Range(1e-6, 1e9))->needs(wanted);
  };
  number("--gflops", asked.gflops, "GFLOP/s that a rank multiplies with");
  number("--host-rate", asked.host_rate, "GB/s from a rank to another rank on the same host");
  number("--link-rate", asked.link_rate, "GB/s that a host sends to other hosts");
  number("--memory", asked.memory, "Memory of each host in GiB, if it is not known");
  number("--gpu-memory", asked.gpu_memory,
         "GiB of each GPU, where trainer.device is \"cuda\": what does not fit is left out");
}

Result<std::string> suggested(const PlannedJob& job, const AskedSuggestions& asked, bool json) {
  MeasuredRates rates;
  if (!asked.rates_file.empty()) {
    SORTIE_ASSIGN_OR_RETURN(const std::string text, read_file(asked.rates_file));
    SORTIE_ASSIGN_OR_RETURN(rates, parse_rates(asked.rates_file, text));
  }
  if (asked.gflops) {
    rates.flop_s = *asked.gflops * 1e9;
    rates.passes.clear();
  }
  if (asked.host_rate) rates.host_byte_s = *asked.host_rate * 1e9;
  if (asked.link_rate) rates.link_byte_s = *asked.link_rate * 1e9;
  SORTIE_TRY(check_rates(rates, job.hosts));
  ProgressLine progress;
  constexpr double kGibibyte = 1 << 30;
  const auto bytes = [](std::optional<double> gibibytes) {
    return static_cast<std::uint64_t>(gibibytes.value_or(0.0) * kGibibyte);
  };
  const KnownMemory memory{bytes(asked.memory), bytes(asked.gpu_memory)};
  SORTIE_ASSIGN_OR_RETURN(const Suggestions found,
                          suggest_layouts(job.loaded.job, job.hosts, job.facts, rates, memory,
                                          [&](std::size_t tried, std::size_t all) {
                                            progress.show("plan --suggest", tried, all, "layouts");
                                          }));
  progress.clear();
  if (!json) return suggestions_text(found);
  return nlohmann::ordered_json(
             {{"schema", "sortie/suggest/1"}, {"suggestions", suggestions_json(found)}})
             .dump(2) +
         "\n";
}

void add_site_options(CLI::App& app, AskedSites& asked) {
  app.add_option("--site-rate", asked.rate,
                 "Rate of the slowest link between two sites, 100Mbit/s; default: measured by "
                 "`sortie check`")
      ->check([](const std::string& text) {
        const auto rate = check::parse_bit_rate(text);
        return rate ? std::string() : rate.error().message;
      });
  app.add_option("--site-round-trip", asked.round_trip,
                 "Round-trip time between sites, in milliseconds")
      ->check(CLI::Range(0.0, 60000.0));
}

Result<std::string> plan_of_sites(const PlannedJob& job, const JobOptions& options,
                                  const AskedSites& asked, std::optional<double> step_time,
                                  bool json) {
  std::vector<SitePlan> plans;
  for (const PlannedSite& site : job.sites)
    plans.push_back({site.place.name, site.hosts, site.plan});
  SORTIE_ASSIGN_OR_RETURN(const std::filesystem::path file, site_links_file());
  SORTIE_ASSIGN_OR_RETURN(const std::vector<SiteLink> known, read_site_links(file));
  SiteOptions given;
  if (!asked.rate.empty()) {
    SORTIE_ASSIGN_OR_RETURN(const double gbit, check::parse_bit_rate(asked.rate));
    given.byte_s = gbit * 1e9 / 8.0;
  }
  if (asked.round_trip) given.round_trip = *asked.round_trip / 1e3;
  given.step_time = step_time;
  given.check_command = command_line(job_command("check", options));
  const SitesPlan between = plan_between_sites(job.loaded.job, job.hosts, plans, known, given);
  if (!json) {
    std::string text;
    for (const SitePlan& site : plans)
      text +=
          fmt::format("{}site {}: {}", text.empty() ? "" : "\n", site.name, plan_text(site.plan));
    return text + sites_text(between);
  }
  OrderedJson out = {{"schema", "sortie/plan-sites/1"}, {"plans", OrderedJson::object()}};
  for (const SitePlan& site : plans) out["plans"][site.name] = plan_json(site.plan);
  out["between"] = sites_json(between);
  return json_text(out, 2) + "\n";
}

}  // namespace sortie::launcher
