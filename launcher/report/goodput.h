// Goodput: what the time of a run went to, over all its attempts, from its journal and metrics.
//
//   idle      until the first attempt trains, and after the last one has ended
//   train     steps that count, validation included
//   save      training stood still for a checkpoint
//   lost      steps that a later attempt did again, or that no checkpoint has; time in a hang
//   restart   from a failure until the next attempt trains
//
// An attempt trains from its event "start" on; of a program that sends none, from the order to
// start its ranks. The five parts add up to the whole.
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
  double train = 0, save = 0, restart = 0, lost = 0, idle = 0;  // of it
  std::size_t attempts = 0;
  bool steps_known = false;     // without steps nothing is known to be lost
  std::int64_t lost_steps = 0;  // sum over the attempts
};

/// What a run's files say about its time. Seconds since 1970, by the launcher's clock.
struct RunTimes {
  struct Attempt {
    double begun = 0;
    std::optional<double> ordered;        // to start
    std::optional<double> failed, ended;  // the first cause; all of it
    bool well = false;                    // every rank exited 0
  };
  struct Begin {
    double time = 0;
    std::int64_t step = 0;  // done before
  };
  struct Step {
    double time = 0;
    std::int64_t step = 0;
  };
  struct Save {
    double time = 0;  // of its state
    std::int64_t step = 0;
    double stall = 0;  // seconds
  };
  std::optional<double> begun, ended;
  double last = 0;        // of the last event of all
  double first_step = 0;  // seconds that the first step took, where no event says when it began
  std::vector<Attempt> attempts;
  std::vector<Begin> begins;
  std::vector<Step> steps;
  std::vector<Save> saves;
  std::vector<double> done;

  /// A line of events.jsonl; a line of metrics.jsonl. Each file in its order. Events that are not
  /// known, or of another shape, are passed over.
  void take_journal(const nlohmann::json& event);
  void take_metric(const nlohmann::json& event);
};

/// `now`: where a run that still goes on is (seconds since 1970). Without it, and without an event
/// "end", the run ended with its last event.
Goodput goodput_of(const RunTimes& times, std::optional<double> now);

/// Of the run whose folder this is; `now` as above.
Goodput read_goodput(const std::filesystem::path& folder, std::optional<double> now);

/// A table; empty where there is nothing to tell: one attempt of a program without steps.
std::string goodput_text(const Goodput& found);
nlohmann::ordered_json goodput_json(const Goodput& found);

}  // namespace sortie::launcher
