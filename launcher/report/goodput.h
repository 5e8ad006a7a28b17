// Goodput: how the time of a run was spent, over all its attempts, from its journal and metrics.
//
//   idle      before the first attempt trains, and after the last one has ended
//   train     steps that were kept, including validation
//   save      training was stalled by a checkpoint
//   lost      steps that a later attempt repeated or that no checkpoint contains; time in a hang
//   restart   from a failure until the next attempt trains
//
// An attempt trains from its event "start" on, or, if the program sends no such event, from the
// order to start its ranks. The five parts add up to the total.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace sortie::launcher {

struct Goodput {
  double total = 0;                                             // seconds
  double train = 0, save = 0, restart = 0, lost = 0, idle = 0;  // seconds, the parts of `total`
  std::size_t attempts = 0;
  bool steps_known = false;     // false: the program reports no steps, so lost steps are unknown
  std::int64_t lost_steps = 0;  // over all attempts
};

/// The times of a run as read from its files. Points in time are seconds since 1970 by the
/// launcher's clock.
struct RunTimes {
  struct Attempt {
    double begun = 0;
    std::optional<double> ordered;        // when the order to start was sent
    std::optional<double> failed, ended;  // time of the first cause; end of the attempt
    bool well = false;                    // every rank exited 0
  };
  struct Begin {
    double time = 0;
    std::int64_t step = 0;     // steps already done
    bool from_memory = false;  // restored from a checkpoint in memory
  };
  struct Step {
    double time = 0;
    std::int64_t step = 0;
  };
  struct Save {
    double time = 0;  // when the saved state was taken
    std::int64_t step = 0;
    double stall = 0;      // seconds for which training was stalled
    bool outlives = true;  // false: in memory, for restarts of the run alone
    bool suspect = false;  // a start prefers any other one
  };
  std::optional<double> begun, ended;
  double last = 0;        // time of the latest event
  double first_step = 0;  // duration of the first step in seconds: gives its start if no event does
  std::vector<Attempt> attempts;
  std::vector<Begin> begins;
  std::vector<Step> steps;
  std::vector<Save> saves;
  std::vector<double> done;

  /// Adds a line of events.jsonl or of metrics.jsonl. The lines of each file must be added in
  /// order. Events that are unknown or malformed are ignored.
  void take_journal(const nlohmann::json& event);
  void take_metric(const nlohmann::json& event);
};

/// Computes the goodput. `now` (seconds since 1970) is for a run that is still active. Without it,
/// and without an event "end", the run counts as ended with its last event.
Goodput goodput_of(const RunTimes& times, std::optional<double> now);

/// Reads the files in the run folder `folder` and computes the goodput; `now` as above.
Goodput read_goodput(const std::filesystem::path& folder, std::optional<double> now);

/// Formats `found` as a table. Empty for a single attempt of a program that reports no steps.
std::string goodput_text(const Goodput& found);
nlohmann::ordered_json goodput_json(const Goodput& found);

}  // namespace sortie::launcher
