// `sortie report`.
#include "launcher/report/report.h"

#include <fmt/core.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <nlohmann/json.hpp>

#include "common/base/json_text.h"
#include "launcher/cli/verb.h"
#include "launcher/control/run_index.h"
#include "launcher/control/run_record.h"
#include "launcher/report/goodput.h"
#include "launcher/run/attempt_folder.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace {

constexpr const char* kReportFooter = R"(Examples:
  sortie report                            the newest run: timeline and first cause
  sortie report 20261121-0954              the run whose id starts with 20261121-0954
  sortie report last --json | jq .cause    as JSON (schema sortie/report/1)
)";

struct ReportOptions {
  std::string run, log_dir;
  bool json = false;
};

struct SiteReport {
  RunView view;
  TrainingRun training;
  Goodput time;
};
/// nullopt while the site has no journal.
std::optional<SiteReport> report_of_site(const std::filesystem::path& run,
                                         const std::string& site) {
  const std::filesystem::path folder = site_folder(run, site);
  auto view = read_run_view(folder);
  const auto record = read_run(folder);
  if (!view || !record) return std::nullopt;
  SiteReport out{std::move(*view), record->training_run(), {}};
  out.time = read_goodput(folder, record->alive() ? std::optional(unix_time()) : std::nullopt);
  return out;
}

Result<std::string> made(const ReportOptions& options) {
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(options.log_dir));
  SORTIE_ASSIGN_OR_RETURN(const auto folder, index.find(options.run));
  SORTIE_ASSIGN_OR_RETURN(const RunView view, read_run_view(folder));
  // A folder without a plan has a journal nevertheless.
  const auto record = read_run(folder);
  const TrainingRun training = record ? record->training_run() : TrainingRun{folder, "", false};
  const Goodput time =
      read_goodput(folder, training.alive ? std::optional(unix_time()) : std::nullopt);
  const std::vector<std::string> sites = sites_in(folder);
  if (!options.json) {
    // For a run over sites: first the report of the run, then that of each site.
    std::string text = report_text(view, training);
    if (sites.empty()) text += goodput_text(time);
    for (const std::string& site : sites)
      if (const auto part = report_of_site(folder, site))
        text += fmt::format("\n--- site {}\n{}{}", site, report_text(part->view, part->training),
                            goodput_text(part->time));
    return text;
  }
  nlohmann::ordered_json json = report_json(view, training);
  json["goodput"] = goodput_json(time);
  for (const std::string& site : sites)
    if (const auto part = report_of_site(folder, site)) {
      json["sites"][site] = report_json(part->view, part->training);
      json["sites"][site]["goodput"] = goodput_json(part->time);
    }
  return json_text(json, 2) + "\n";
}

}  // namespace

void add_report_verb(CLI::App& root, std::vector<Verb>& verbs) {
  const auto options = std::make_shared<ReportOptions>();
  CLI::App* report = root.add_subcommand("report", "Show what happened in a run, from its journal");
  report->footer(kReportFooter);
  add_run_name(*report, options->run, options->log_dir);
  report->add_flag("--json", options->json, "As JSON (schema sortie/report/1)");
  verbs.push_back({report, [options] {
                     const auto text = made(*options);
                     return text ? print_text(*text) : print_error(text.error());
                   }});
}

}  // namespace sortie::launcher
