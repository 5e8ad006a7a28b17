// Formats a TrainingView as text and JSON.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "launcher/view/training_view.h"

namespace sortie::launcher {

/// Returns the status line of an active run for the bottom of the terminal, the most important
/// values first: "step 120/2000  loss 2.3104  12.3k tokens/s  ETA 3m20s  checkpoint 100  best 2.4
/// at step 100". Empty until a rank reports training.
std::string live_line(const TrainingView& training, double now);

/// Cells of a table: "120/2000", "2.3104"; "-" = unknown.
struct TrainingCells {
  std::string step, loss, tokens_per_s, eta, checkpoint, best;
};
TrainingCells training_cells(const TrainingView& training, bool alive, double now);

/// The run of a TrainingView, for hints about what to do next.
struct TrainingRun {
  std::filesystem::path folder;
  std::string name;
  bool alive = false;
};

/// Returns {name, value} rows for `status` and `report`. Empty until a rank reports training.
std::vector<std::pair<std::string, std::string>> training_rows(const TrainingView& training,
                                                               const TrainingRun& run, double now);

/// Returns the summary of a run that has ended or was lost: last loss, last checkpoint, profiles,
/// and the command that continues it, with the variables that it needs. The last line has no
/// newline. Empty for a run without training.
std::string training_summary(const TrainingView& training, const TrainingRun& run);

/// null until a rank reports training.
nlohmann::ordered_json training_json(const TrainingView& training, const TrainingRun& run,
                                     double now);

}  // namespace sortie::launcher
