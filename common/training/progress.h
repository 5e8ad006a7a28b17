// Position of a rank in its training, which it sends to its runner over SORTIE_SOCKET as a line
// {"type":"progress","step":12,"section":"forward","sequence":345}. The runner keeps the last line
// of each rank and puts it into its heartbeats; it is not an event of metrics.jsonl. README.md
// lists the members. Trainer, runner and launcher all use these names.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sortie::training {

/// The activity of a rank within a step. `start` lasts until the first step begins. A program that
/// does not report sections is always in `step`.
enum class Section : std::uint8_t {
  start = 0,
  step = 1,
  data = 2,  // waits for samples
  forward = 3,
  backward = 4,
  reduce = 5,  // waits for other ranks
  optimizer = 6,
  evaluate = 7,
  save = 8,  // training is blocked by a checkpoint
  done = 9,  // after the last step
};

/// A program that handles SIGQUIT may append its stacks to the file SORTIE_SOCKET + kStacksSuffix +
/// pid, with kStacksEnd as the last line.
inline constexpr std::string_view kStacksSuffix = ".stacks-";
inline constexpr std::string_view kStacksEnd = "end of stacks";

/// The runner creates the file SORTIE_SOCKET + kHurrySuffix before a SIGTERM that leaves no time to
/// wait for other ranks: one of them is lost, or the grace is shorter than runner.grace.
inline constexpr std::string_view kHurrySuffix = ".hurry";

inline constexpr std::array<std::string_view, 10> kSectionNames = {
    "start",  "step",      "data",     "forward", "backward",
    "reduce", "optimizer", "evaluate", "save",    "done"};

constexpr std::string_view section_name(Section section) {
  return kSectionNames[static_cast<std::size_t>(section)];
}
/// Whether time in this section is the rank's own work and not a wait for other ranks.
constexpr bool is_own_work(Section section) {
  return section == Section::data || section == Section::forward || section == Section::backward ||
         section == Section::optimizer;
}
/// Whether ranks wait for each other in this section, so that one without progress may only wait.
constexpr bool may_wait_for_others(Section section) {
  return section == Section::reduce || section == Section::evaluate || section == Section::save ||
         section == Section::done || section == Section::start;
}
/// Both return nullopt for a number or name that this version does not know.
constexpr std::optional<Section> section_of(std::uint64_t number) {
  if (number >= kSectionNames.size()) return std::nullopt;
  return static_cast<Section>(number);
}
constexpr std::optional<Section> section_of(std::string_view name) {
  for (std::size_t i = 0; i < kSectionNames.size(); ++i)
    if (kSectionNames[i] == name) return static_cast<Section>(i);
  return std::nullopt;
}

}  // namespace sortie::training
