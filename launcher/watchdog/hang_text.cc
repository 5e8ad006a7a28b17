#include <fmt/format.h>

#include "launcher/watchdog/watchdog.h"

namespace sortie::launcher {

std::string hang_text(const Hang& hang, const std::string& host_name, std::size_t world_size) {
  const wire::RankProgress& where = hang.where;
  const auto section = static_cast<training::Section>(where.section);
  const bool several = hang.behind.size() > 1;
  std::string who = several && hang.behind.size() == world_size
                        ? fmt::format("all {} ranks make", world_size)
                    : several ? fmt::format("{} ranks, the first of them rank {} on {}, make",
                                            hang.behind.size(), where.rank, host_name)
                              : fmt::format("rank {} on {} makes", where.rank, host_name);
  std::string place = section == training::Section::start
                          ? std::string("before the first step")
                          : fmt::format("step {}, {}", where.step, training::section_name(section));
  if (where.sequence > 0) place += fmt::format(", collective {}", where.sequence);
  std::string text = fmt::format("{} no progress: {}, for {:.1f} s (limit {:.3g} s)", who, place,
                                 static_cast<double>(where.standing_ms) / 1000,
                                 static_cast<double>(hang.limit.count()) / 1000);
  if (!hang.why.empty()) text += "; " + hang.why;
  const std::size_t others = hang.ranks.size() - hang.behind.size();
  if (others > 0)
    text += fmt::format("; {} other rank{} no progress either", others,
                        others == 1 ? " makes" : "s make");
  return text;
}

}  // namespace sortie::launcher
