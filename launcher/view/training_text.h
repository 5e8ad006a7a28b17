// TrainingView as text and JSON.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "launcher/view/training_view.h"

namespace sortie::launcher {

/// What a person wants to know of a living run at the bottom of the terminal, the most important
/// first: "step 120/2000  loss 2.3104  12.3k tokens/s  ETA 3m20s  checkpoint 100  best 2.4 at 100".
/// Empty while no rank has spoken of training.
std::string live_line(const TrainingView& training, double now);

/// A cell of a table: "120/2000", "2.3104"; "-" where nothing is known.
struct TrainingCells {
  std::string step, loss, tokens_per_s, eta, checkpoint, best;
};
TrainingCells training_cells(const TrainingView& training, bool alive, double now);

/// The run that it belongs to, for what can be done next.
struct TrainingRun {
  std::filesystem::path folder;
  std::string name;
  bool alive = false;
};

/// Names and values, for `status` and `report`; empty while no rank has spoken of training.
std::vector<std::pair<std::string, std::string>> training_rows(const TrainingView& training,
                                                               const TrainingRun& run, double now);

/// Where a run stands that has ended, or was lost: last loss, last checkpoint, profiles, and the
/// command that goes on. Lines without a line end at the end; empty for a run without training.
std::string training_summary(const TrainingView& training, const TrainingRun& run);

/// null while no rank has spoken of training.
nlohmann::ordered_json training_json(const TrainingView& training, const TrainingRun& run,
                                     double now);

}  // namespace sortie::launcher
