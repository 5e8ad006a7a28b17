// Rates of machines and links from the JSON reports of `sortie-train bench`.
#include <fmt/format.h>

#include <algorithm>
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

/// A layer's three products have as many operations each: the rate of all is the harmonic mean.
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
  if (report.contains("dtype") && report["dtype"].is_string())
    rates.precision = report["dtype"].get<std::string>();
}

/// The slowest link counts: every step waits for it.
void take_links(const Json& report, MeasuredRates& rates) {
  const auto links = report.find("links");
  if (links == report.end() || !links->is_object() || !links->contains("pairs")) return;
  for (const Json& pair : (*links)["pairs"]) {
    if (!pair.is_object() || !pair.contains("from") || !pair.contains("to")) continue;
    const double rate = number_at(pair, "gbit_s") * 1e9 / 8.0;
    double& slowest = pair["from"] == pair["to"] ? rates.host_byte_s : rates.link_byte_s;
    if (rate > 0.0) slowest = slowest > 0.0 ? std::min(slowest, rate) : rate;
  }
}

}  // namespace

Result<MeasuredRates> parse_rates(const std::string& where, const std::string& text) {
  MeasuredRates rates;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.empty()) continue;
    const Json report = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const std::string schema =
        report.is_object() && report.contains("schema") && report["schema"].is_string()
            ? report["schema"].get<std::string>()
            : std::string();
    if (schema == "sortie/bench-matmul/1") {
      take_products(report, rates);
    } else if (schema == "sortie/bench-comm/1") {
      take_links(report, rates);
    } else if (schema != "sortie/bench-copy/1") {
      return fail(ErrorCode::usage,
                  fmt::format("{}:{}: no report of a measurement; give what `sortie-train bench "
                              "matmul --json` and `bench comm --links --json` print, one a line",
                              where, number));
    }
  }
  return rates;
}

Result<> check_rates(const MeasuredRates& rates) {
  const auto missing = [](const char* what, const char* option, const char* command) {
    return fail(ErrorCode::usage,
                fmt::format("plan --suggest: {} is not known; give {}, or --rates FILE with what "
                            "`{}` prints",
                            what, option, command));
  };
  if (rates.flop_s <= 0.0)
    return missing("how fast a rank multiplies", "--gflops", "sortie-train bench matmul --json");
  if (rates.host_byte_s <= 0.0)
    return missing("how much a rank sends within its host", "--host-rate",
                   "sortie-train bench comm --links --link-ranks all --json");
  if (rates.link_byte_s <= 0.0)
    return missing("how much a host sends to others", "--link-rate",
                   "sortie-train bench comm --links --json");
  return {};
}

}  // namespace sortie::launcher
