// Where a rank is in its training: what it tells its runner over SORTIE_SOCKET, as one line
// {"type":"progress","step":12,"section":"forward","sequence":345}. The runner keeps the last one
// of each rank and puts it into its heartbeats; it is no event of metrics.jsonl. README.md has the
// members. The names are the vocabulary of trainer, runner and launcher.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sortie::training {

/// What a rank does within a step. `start` lasts until the first step begins. A program that knows
/// no sections is always in `step`.
enum class Section : std::uint8_t {
  start = 0,
  step = 1,
  data = 2,  // waits for samples
  forward = 3,
  backward = 4,
  reduce = 5,  // waits for other ranks
  optimizer = 6,
  evaluate = 7,
  save = 8,  // training stands still for a checkpoint
  done = 9,  // after the last step
};

/// A program that catches SIGQUIT may append its stacks to the file whose name is SORTIE_SOCKET,
/// this, and its pid; and end them with this line.
inline constexpr std::string_view kStacksSuffix = ".stacks-";
inline constexpr std::string_view kStacksEnd = "end of stacks";

/// The file whose name is SORTIE_SOCKET and this is there before a SIGTERM of the runner that
/// leaves no time to wait for other ranks: one of them is lost, or the grace is shorter than
/// runner.grace.
inline constexpr std::string_view kHurrySuffix = ".hurry";

inline constexpr std::array<std::string_view, 10> kSectionNames = {
    "start",  "step",      "data",     "forward", "backward",
    "reduce", "optimizer", "evaluate", "save",    "done"};

constexpr std::string_view section_name(Section section) {
  return kSectionNames[static_cast<std::size_t>(section)];
}
/// A rank's own work: what it takes there is its own time, not that of others.
constexpr bool is_own_work(Section section) {
  return section == Section::data || section == Section::forward || section == Section::backward ||
         section == Section::optimizer;
}
/// Ranks wait for each other there: one that stands still may only be waiting.
constexpr bool may_wait_for_others(Section section) {
  return section == Section::reduce || section == Section::evaluate || section == Section::save ||
         section == Section::done || section == Section::start;
}
/// Nothing for a number or a name that this version does not know.
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
