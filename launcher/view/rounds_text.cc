#include "launcher/view/rounds_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/printable.h"
#include "common/base/quantity.h"

namespace sortie::launcher {

std::string rounds_text(const RunView& view, double now) {
  const RoundsView& rounds = view.rounds;
  if (rounds.commits == 0) return rounds.trouble;
  const auto mean = [&](double seconds) { return seconds / static_cast<double>(rounds.commits); };
  std::string text = fmt::format("{}, of {}, {} ago; exchange {:.3g} s, wait {:.3g} s on average",
                                 rounds.round, counted(rounds.members.size(), "site"),
                                 short_time(std::max(0.0, now - view.begun - rounds.at)),
                                 mean(rounds.exchanging), mean(rounds.waiting));
  if (rounds.aborts > 0) text += fmt::format("; {} called off", rounds.aborts);
  if (rounds.excluded > 0)
    text += fmt::format("; {} without a site", counted(rounds.excluded, "time"));
  if (!rounds.trouble.empty()) text += "; " + rounds.trouble;
  return text;
}

std::string sites_text(const RunView& view) {
  std::string out;
  for (const auto& [name, site] : view.sites) {
    out += fmt::format("  {:<16} {}", printable(name), printable(site.state));
    if (site.exit_code) out += fmt::format(" {}", *site.exit_code);
    out += fmt::format(", joined {}", counted(site.joined, "time"));
    if (site.steps_in_vain > 0)
      out += fmt::format(", {} in vain", counted(site.steps_in_vain, "step"));
    if (!site.text.empty())
      out += ": " + printable(std::string_view(site.text).substr(0, site.text.find('\n')));
    out += '\n';
  }
  return out;
}

nlohmann::ordered_json rounds_json(const RunView& view) {
  std::int64_t in_vain = 0;
  for (const auto& [name, site] : view.sites) in_vain += site.steps_in_vain;
  return {{"round", view.rounds.round},
          {"commits", view.rounds.commits},
          {"sites", view.rounds.members},
          {"called_off", view.rounds.aborts},
          {"without_a_site", view.rounds.excluded},
          {"steps_in_vain", in_vain},
          {"exchange_s", view.rounds.exchanging},
          {"wait_s", view.rounds.waiting}};
}

}  // namespace sortie::launcher
