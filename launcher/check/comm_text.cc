// Measurements between hosts, as a table and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/config/hostlist.h"
#include "launcher/check/comm.h"

namespace sortie::launcher::check {
namespace {

constexpr std::size_t kMaxRows = 32;  // hosts; if there are more, the slowest are shown

/// The links of one host.
struct HostRow {
  std::string host;
  std::vector<double> rates;  // ascending
  std::string slowest_to;
  double latency_us = 0;  // lowest of its links
  std::string ring_to;
  double ring_gbit_s = 0;

  double middle() const { return rates.empty() ? 0 : rates[rates.size() / 2]; }
};

std::vector<HostRow> rows_of(const CommReport& report) {
  std::map<std::string, HostRow> rows;
  std::map<std::string, double> slowest;
  for (const CommLink& link : report.pairs)
    for (const auto& [host, other] :
         {std::pair(link.from, link.to), std::pair(link.to, link.from)}) {
      HostRow& row = rows[host];
      row.host = host;
      if (row.rates.empty() || link.gbit_s < slowest[host]) {
        slowest[host] = link.gbit_s;
        row.slowest_to = other;
      }
      if (row.latency_us == 0 || link.latency_us < row.latency_us) row.latency_us = link.latency_us;
      row.rates.push_back(link.gbit_s);
    }
  for (const CommLink& link : report.ring) {
    rows[link.from].ring_to = link.to;
    rows[link.from].ring_gbit_s = link.gbit_s;
  }
  std::vector<HostRow> out;
  for (const std::string& host : report.hosts) {
    const auto found = rows.find(host);
    if (found == rows.end()) continue;
    std::ranges::sort(found->second.rates);
    out.push_back(std::move(found->second));
  }
  return out;
}

std::string table(const CommReport& report) {
  std::vector<HostRow> rows = rows_of(report);
  const std::size_t all = rows.size();
  if (all > kMaxRows) {
    std::ranges::stable_sort(rows, {}, &HostRow::middle);
    rows.resize(kMaxRows);
  }
  std::size_t width = 4;
  for (const HostRow& row : rows) width = std::max(width, row.host.size());
  std::string text =
      fmt::format("{:<{}}  {:>8}  {:>8}  {:>8}  {:<{}}  {:>8}  {:<{}}  {:>10}\n", "host", width,
                  "fastest", "median", "slowest", "to", width, "ring", "to", width, "latency us");
  for (const HostRow& row : rows)
    text +=
        fmt::format("{:<{}}  {:>8.3f}  {:>8.3f}  {:>8.3f}  {:<{}}  {:>8.3f}  {:<{}}  {:>10.1f}\n",
                    row.host, width, row.rates.back(), row.middle(), row.rates.front(),
                    row.slowest_to, width, row.ring_gbit_s, row.ring_to, width, row.latency_us);
  if (all > kMaxRows)
    text += fmt::format("and {} faster hosts; -v shows every link\n", all - kMaxRows);
  return text;
}

std::string every_pair(const CommReport& report) {
  std::size_t width = 4;
  for (const std::string& host : report.hosts) width = std::max(width, host.size());
  std::string text = fmt::format("{:<{}}  {:<{}}  {:>8}  {:>10}\n", "from", width, "to", width,
                                 "Gbit/s", "latency us");
  for (const CommLink& link : report.pairs)
    text += fmt::format("{:<{}}  {:<{}}  {:>8.3f}  {:>10.1f}\n", link.from, width, link.to, width,
                        link.gbit_s, link.latency_us);
  return text;
}

std::string verdict_word(const char* word, const char* color_code, bool color) {
  return color ? fmt::format("\x1b[{}m{}\x1b[0m", color_code, word) : word;
}

std::string folded_hosts(const std::vector<std::string>& hosts) {
  std::string text = config::fold_host_names(hosts);
  if (hosts.size() > 1) text += fmt::format(" ({})", hosts.size());
  return text;
}

}  // namespace

std::string comm_text(const CommOutcome& outcome, const CommLook& look) {
  const std::string fail = verdict_word("FAIL", "1;31", look.color);
  if (outcome.error) return fmt::format("\n{} comm: {}\n", fail, outcome.error->message);
  const CommReport& report = outcome.report;
  const CommJudgement& judged = outcome.judgement;
  std::string text =
      fmt::format("\nlinks of {} hosts, {} ranks, {}: Gbit/s each way at the same time\n",
                  report.hosts.size(), report.ranks, report.library);
  if (look.verbose) text += every_pair(report);
  text += table(report) + '\n';
  for (const CommFinding& finding : judged.slow)
    text += fmt::format("{} comm: {}: {}\n     fix: {}\n", fail, folded_hosts(finding.hosts),
                        finding.text, finding.fix);
  if (judged.floor_gbit_s == 0)
    return text +
           "comm: not judged: two hosts have one link; --comm-floor RATE sets what it must "
           "reach\n";
  if (judged.slow.empty())
    text += fmt::format("comm: {}: every link reaches {:.3g} Gbit/s\n",
                        verdict_word("PASS", "32", look.color), judged.floor_gbit_s);
  return text;
}

nlohmann::ordered_json comm_json(const CommOutcome& outcome) {
  using nlohmann::ordered_json;
  const CommJudgement& judged = outcome.judgement;
  if (outcome.error)
    return {
        {"verdict", "fail"},
        {"seconds", outcome.seconds},
        {"error",
         {{"stage", error_code_name(outcome.error->code)}, {"message", outcome.error->message}}}};
  const CommReport& report = outcome.report;
  const char* verdict = judged.floor_gbit_s == 0 ? "none" : judged.slow.empty() ? "pass" : "fail";
  const auto ok = [&](const CommLink& link) {
    return judged.floor_gbit_s == 0 || link.gbit_s >= judged.floor_gbit_s;
  };
  ordered_json out = {{"verdict", verdict},
                      {"seconds", outcome.seconds},
                      {"library", report.library},
                      {"ranks", report.ranks},
                      {"hosts", report.hosts},
                      {"usual_gbit_s", judged.usual_gbit_s},
                      {"floor_gbit_s", judged.floor_gbit_s},
                      {"floor", judged.floor_was_set ? "set" : "usual"}};
  out["pairs"] = ordered_json::array();
  for (const CommLink& link : report.pairs)
    out["pairs"].push_back({{"from", link.from},
                            {"to", link.to},
                            {"gbit_s", link.gbit_s},
                            {"latency_us", link.latency_us},
                            {"ok", ok(link)}});
  out["ring"] = ordered_json::array();
  for (const CommLink& link : report.ring)
    out["ring"].push_back(
        {{"from", link.from}, {"to", link.to}, {"gbit_s", link.gbit_s}, {"ok", ok(link)}});
  out["slow"] = ordered_json::array();
  for (const CommFinding& finding : judged.slow)
    out["slow"].push_back(
        {{"hosts", finding.hosts}, {"reason", finding.text}, {"fix", finding.fix}});
  return out;
}

}  // namespace sortie::launcher::check
