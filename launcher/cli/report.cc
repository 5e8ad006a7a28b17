// `sortie report`.
#include "launcher/report/report.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "launcher/cli/verb.h"
#include "launcher/control/run_index.h"
#include "launcher/control/run_record.h"
#include "launcher/report/goodput.h"
#include "launcher/run/run_folder.h"

namespace sortie::launcher {
namespace {

constexpr const char* kReportFooter = R"(Examples:
  sortie report                            the newest run: when what happened, what failed first
  sortie report 20261121-0954              the run whose id begins so
  sortie report last --json | jq .cause    for a program to read (schema sortie/report/1)
)";

struct ReportOptions {
  std::string run, log_dir;
  bool json = false;
};

Result<std::string> made(const ReportOptions& options) {
  SORTIE_ASSIGN_OR_RETURN(const RunIndex index, RunIndex::open(options.log_dir));
  SORTIE_ASSIGN_OR_RETURN(const auto folder, index.find(options.run));
  SORTIE_ASSIGN_OR_RETURN(const RunView view, read_run_view(folder));
  // A folder without a plan has a journal all the same.
  const auto record = read_run(folder);
  const TrainingRun training = record ? record->training_run() : TrainingRun{folder, "", false};
  const Goodput time =
      read_goodput(folder, training.alive ? std::optional(unix_time()) : std::nullopt);
  if (!options.json) return report_text(view, training) + goodput_text(time);
  nlohmann::ordered_json json = report_json(view, training);
  json["goodput"] = goodput_json(time);
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

void add_report_verb(CLI::App& root, std::vector<Verb>& verbs) {
  const auto options = std::make_shared<ReportOptions>();
  CLI::App* report = root.add_subcommand("report", "Tell what happened in a run, from its journal");
  report->footer(kReportFooter);
  add_run_name(*report, options->run, options->log_dir);
  report->add_flag("--json", options->json, "As JSON (schema sortie/report/1)");
  verbs.push_back({report, [options] {
                     const auto text = made(*options);
                     return text ? print_text(*text) : print_error(text.error());
                   }});
}

}  // namespace sortie::launcher
