// Parses rates of machines and links from the JSON reports of `sortie-train bench`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "launcher/plan/suggest.h"

namespace sortie::launcher {
namespace {

using Json = nlohmann::json;

double number_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0.0;
}

void take_precision(const Json& report, MeasuredRates& rates) {
  if (report.contains("dtype") && report["dtype"].is_string())
    rates.precision = report["dtype"].get<std::string>();
}

/// The three products of a layer have equally many operations: their overall rate is the harmonic
/// mean.
void take_products(const Json& report, MeasuredRates& rates) {
  double seconds = 0.0;
  for (const char* product : {"forward", "data_gradient", "weight_gradient"}) {
    const auto found = report.find(product);
    const double rate =
        found != report.end() && found->is_object() ? number_at(*found, "tflop_s") : 0.0;
    if (rate <= 0.0) return;
    seconds += 1.0 / rate;
  }
  rates.flop_s = 3e12 / seconds;
  take_precision(report, rates);
}

/// Of ranks measured together, the slowest counts: every step waits for it.
void take_steps(const Json& report, MeasuredRates& rates) {
  const auto passes = report.find("passes"), update = report.find("update");
  if (passes == report.end() || !passes->is_array() || update == report.end() ||
      !update->is_object() || number_at(*update, "parameters") <= 0.0)
    return;
  const double update_s = number_at(*update, "seconds") / number_at(*update, "parameters");
  rates.update_s = std::max(rates.update_s, update_s);
  for (const Json& pass : *passes) {
    if (!pass.is_object()) continue;
    const auto size = static_cast<std::int64_t>(number_at(pass, "micro_batch_size"));
    const double flop_s = number_at(pass, "tflop_s") * 1e12;
    if (size < 1 || flop_s <= 0.0) continue;
    const auto at =
        std::ranges::lower_bound(rates.passes, size, {}, &MeasuredRates::Pass::micro_batch_size);
    if (at != rates.passes.end() && at->micro_batch_size == size)
      at->flop_s = std::min(at->flop_s, flop_s);
    else
      rates.passes.insert(at, {size, flop_s});
  }
  if (rates.passes.empty()) return;
  rates.flop_s = rates.passes.front().flop_s;
  take_precision(report, rates);
}

/// The slowest link counts: every step waits for it.
void take_links(const Json& report, MeasuredRates& rates) {
  const auto links = report.find("links");
  if (links == report.end() || !links->is_object() || !links->contains("pairs")) return;
  rates.beside_s = std::max(rates.beside_s, 1e-9 * number_at(*links, "beside_ns_per_byte"));
  for (const Json& pair : (*links)["pairs"]) {
    if (!pair.is_object() || !pair.contains("from") || !pair.contains("to")) continue;
    const double rate = number_at(pair, "gbit_s") * 1e9 / 8.0;
    double& slowest = pair["from"] == pair["to"] ? rates.host_byte_s : rates.link_byte_s;
    if (rate > 0.0) slowest = slowest > 0.0 ? std::min(slowest, rate) : rate;
  }
}

}  // namespace

double flop_s_of(const MeasuredRates& rates, std::int64_t micro_batch_size) {
  if (rates.passes.empty()) return rates.flop_s;
  const auto above = std::ranges::lower_bound(rates.passes, micro_batch_size, {},
                                              &MeasuredRates::Pass::micro_batch_size);
  if (above == rates.passes.begin()) return above->flop_s;
  if (above == rates.passes.end()) return rates.passes.back().flop_s;
  const auto below = std::prev(above);
  const auto log_of = [](std::int64_t size) { return std::log2(static_cast<double>(size)); };
  const double share = (log_of(micro_batch_size) - log_of(below->micro_batch_size)) /
                       (log_of(above->micro_batch_size) - log_of(below->micro_batch_size));
  return below->flop_s + share * (above->flop_s - below->flop_s);
}

Result<MeasuredRates> parse_rates(const std::string& where, const std::string& text) {
  MeasuredRates rates;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.empty()) continue;
    // `sortie run` prefixes lines with the rank: "[0 node1] {...}".
    const std::size_t prefix = line.starts_with('[') ? line.find("] {") : std::string::npos;
    if (prefix != std::string::npos) line.erase(0, prefix + 2);
    const Json report = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const std::string schema =
        report.is_object() && report.contains("schema") && report["schema"].is_string()
            ? report["schema"].get<std::string>()
            : std::string();
    if (schema == "sortie/bench-step/1") {
      take_steps(report, rates);
    } else if (schema == "sortie/bench-matmul/1") {
      if (rates.passes.empty()) take_products(report, rates);
    } else if (schema == "sortie/bench-comm/1") {
      take_links(report, rates);
    } else if (schema != "sortie/bench-copy/1") {
      return fail(ErrorCode::usage,
                  fmt::format("{}:{}: no report of a measurement; give what `sortie-train bench "
                              "step --json` and `bench comm --links --json` print, one a line",
                              where, number));
    }
  }
  return rates;
}

Result<> check_rates(const MeasuredRates& rates, const std::vector<config::HostSlots>& hosts) {
  const auto missing = [](const char* what, const char* option, const char* command) {
    return fail(ErrorCode::usage,
                fmt::format("plan --suggest: {} is not known; give {}, or --rates FILE with what "
                            "`{}` prints",
                            what, option, command));
  };
  if (rates.flop_s <= 0.0)
    return missing("how fast a rank computes", "--gflops", "sortie-train bench step --json");
  const bool shared = std::ranges::any_of(
      hosts, [](const config::HostSlots& host) { return host.slots.size() > 1; });
  if (shared && rates.host_byte_s <= 0.0)
    return missing("how much a rank sends within its host", "--host-rate",
                   "sortie-train bench comm --links --link-ranks all --json");
  if (hosts.size() > 1 && rates.link_byte_s <= 0.0)
    return missing("how much a host sends to others", "--link-rate",
                   "sortie-train bench comm --links --json");
  return {};
}

}  // namespace sortie::launcher
