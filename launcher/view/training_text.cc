#include "launcher/view/training_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/command_name.h"
#include "common/base/quantity.h"
#include "common/config/load.h"
#include "common/config/secret.h"
#include "launcher/console/console.h"
#include "launcher/run/attempt_folder.h"

namespace sortie::launcher {
using OrderedJson = nlohmann::ordered_json;
namespace {

namespace fs = std::filesystem;
using Rows = std::vector<std::pair<std::string, std::string>>;

std::string loss_text(double loss) {
  return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : "-";
}

std::string at_step(const TrainingView::Validation& validation) {
  return fmt::format("{} at step {}", loss_text(validation.loss), validation.step);
}

/// "code 3.2000, wiki 4.3000"; empty with a single set.
std::string sets_text(const TrainingView::Validation& validation) {
  constexpr std::size_t kShown = 16;
  std::string out;
  std::size_t shown = 0;
  for (const auto& [name, loss] : validation.sets) {
    if (++shown > kShown) return out + fmt::format(" and {} more", validation.sets.size() - kShown);
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name, loss_text(loss));
  }
  return out;
}

std::string step_text(const TrainingView& training) {
  return fmt::format("{} of {}", training.step, training.steps);
}

/// The config that continues the run; for a site that of the whole run.
fs::path config_of(const TrainingRun& run) {
  return run_of_site(run.folder).value_or(run.folder) / "config.toml";
}

/// The command that continues the run. The name keeps the runs together in `ps`.
std::string go_on_command(const TrainingRun& run) {
  std::vector<std::string> words = {"run"};
  if (!run.name.empty()) words.insert(words.end(), {"--name", run.name});
  words.push_back(config_of(run).string());
  return command_line(words);
}

/// " (export HF_TOKEN first)" if the stored config has secrets, of which it lacks the values. A
/// secrets file may have them.
std::string secrets_to_export(const TrainingRun& run) {
  const auto loaded = config::load_job(config_of(run), {});
  if (!loaded || !loaded->job.runner.secrets_file.empty()) return "";
  const config::RunnerConfig& runner = loaded->job.runner;
  std::set<std::string> names;
  for (const auto* table : {&runner.env, &runner.secret_env, &runner.container.env})
    for (const auto& [name, value] : *table)
      if (value == config::kSecretShown) names.insert(name);
  return names.empty() ? "" : fmt::format(" (export {} first)", fmt::join(names, " "));
}

/// Whether something is left to train or to save, and no process does it.
bool can_go_on(const TrainingView& training, const TrainingRun& run) {
  return !run.alive && !training.finished();
}

/// How to continue a run that has ended: {"resume", "from step 20", the command}. Empty if training
/// is complete.
struct GoOn {
  std::string what, where, command;
};
GoOn go_on(const TrainingView& training, const TrainingRun& run) {
  if (!can_go_on(training, run)) return {};
  const std::string secrets = secrets_to_export(run);
  if (training.checkpoint)
    return {"resume", fmt::format("from step {}{}", training.checkpoint->step, secrets),
            go_on_command(run)};
  return {"start again", fmt::format("at step {}{}", training.first_step, secrets),
          go_on_command(run)};
}

std::string checkpoint_text(const TrainingView& training) {
  if (training.checkpoint)
    return fmt::format("step {}, {}{}{}", training.checkpoint->step, training.checkpoint->path,
                       training.checkpoint->suspect ? ", suspect" : "",
                       training.suspect_step == 0
                           ? ""
                           : fmt::format("; that of step {} is suspect", training.suspect_step));
  if (training.start && training.start->save_dir.empty())
    return "none: trainer.save_dir is not set";
  return "none";
}

/// Files in the run folder first, then those that ranks wrote themselves.
std::vector<std::string> profiles(const TrainingView& training, const TrainingRun& run) {
  std::vector<std::string> out;
  for (const auto& [rank, place] : training.profiles)
    out.push_back(place.empty() ? (run.folder / fmt::format("profile-rank-{}.json", rank)).string()
                                : place);
  return out;
}

std::string profiles_text(const TrainingView& training, const TrainingRun& run) {
  constexpr std::size_t kShown = 8;
  std::vector<std::string> all = profiles(training, run);
  const std::size_t more = all.size() > kShown ? all.size() - kShown : 0;
  all.resize(all.size() - more);
  return fmt::format("{}{}", fmt::join(all, " "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace

TrainingCells training_cells(const TrainingView& training, bool alive, double now) {
  if (!training.any()) return {"-", "-", "-", "-", "-", "-"};
  return {fmt::format("{}/{}", training.step, training.steps),
          loss_text(training.loss),
          alive ? short_number(training.tokens_per_s) : "-",
          alive ? short_time(training.eta_at(now)) : "-",
          training.checkpoint ? std::to_string(training.checkpoint->step) : "-",
          training.best ? loss_text(training.best->loss) : "-"};
}

std::string live_line(const TrainingView& training, double now) {
  if (!training.any()) return {};
  std::string line = fmt::format("step {}/{}", training.step, training.steps);
  if (std::isfinite(training.loss)) line += "  loss " + loss_text(training.loss);
  if (std::isfinite(training.tokens_per_s))
    line += fmt::format("  {} tokens/s", short_number(training.tokens_per_s));
  if (std::isfinite(training.eta_s))
    line += fmt::format("  ETA {}", short_time(training.eta_at(now)));
  if (training.checkpoint) line += fmt::format("  checkpoint {}", training.checkpoint->step);
  if (training.best) line += "  best " + at_step(*training.best);
  return line;
}

std::vector<std::pair<std::string, std::string>> training_rows(const TrainingView& training,
                                                               const TrainingRun& run, double now) {
  Rows rows;
  if (!training.any()) return rows;
  std::string step = step_text(training);
  if (run.alive && std::isfinite(training.eta_s))
    step += fmt::format(", ETA {}", short_time(training.eta_at(now)));
  if (run.alive && std::isfinite(training.tokens_per_s))
    step += fmt::format(", {} tokens/s", short_number(training.tokens_per_s));
  rows.emplace_back("step", step);
  rows.emplace_back("loss", loss_text(training.loss));
  if (training.validation) {
    std::string text = at_step(*training.validation);
    if (training.best)
      text += training.best->step == training.validation->step &&
                      std::isfinite(training.validation->loss)
                  ? ", the lowest so far"
                  : fmt::format(", lowest {}", at_step(*training.best));
    rows.emplace_back("validation", text);
    if (std::string sets = sets_text(*training.validation); !sets.empty())
      rows.emplace_back("by set", std::move(sets));
  }
  rows.emplace_back("checkpoint", checkpoint_text(training));
  if (run.alive && training.memory_step)
    rows.emplace_back(
        "in memory", fmt::format("step {}, for restarts of this run alone", *training.memory_step));
  if (training.best_checkpoint)
    rows.emplace_back("best", fmt::format("step {}, {}", training.best_checkpoint->step,
                                          training.best_checkpoint->path));
  if (!training.profiles.empty()) rows.emplace_back("profiles", profiles_text(training, run));
  if (const GoOn next = go_on(training, run); !next.what.empty())
    rows.emplace_back(next.what, fmt::format("{}: {}", next.where, next.command));
  return rows;
}

std::string training_summary(const TrainingView& training, const TrainingRun& run) {
  if (!training.any()) return {};
  std::string out = fmt::format("training ended at step {}", step_text(training));
  if (std::isfinite(training.loss)) out += fmt::format(", loss {}", loss_text(training.loss));
  if (training.validation) {
    out += fmt::format(", validation loss {}", at_step(*training.validation));
    if (const std::string sets = sets_text(*training.validation); !sets.empty())
      out += fmt::format(" ({})", sets);
  }
  if (training.best && training.best->step != training.validation.value_or(*training.best).step)
    out += fmt::format(" (lowest {})", at_step(*training.best));
  out += "\nlast checkpoint: " + checkpoint_text(training);
  if (training.best_checkpoint)
    out += fmt::format("\nlowest validation loss: step {}, {}", training.best_checkpoint->step,
                       training.best_checkpoint->path);
  if (!training.profiles.empty()) out += "\nprofiles: " + profiles_text(training, run);
  if (const GoOn next = go_on(training, run); !next.what.empty())
    out += fmt::format("\nto {} {}:\n  {}", next.what, next.where, next.command);
  return out;
}

nlohmann::ordered_json training_json(const TrainingView& training, const TrainingRun& run,
                                     double now) {
  if (!training.any()) return nullptr;
  const auto validation = [](const std::optional<TrainingView::Validation>& value) {
    if (!value) return OrderedJson(nullptr);
    OrderedJson json = {{"step", value->step}, {"loss", value->loss}};
    if (!value->sets.empty()) json["sets"] = value->sets;
    return json;
  };
  const auto checkpoint = [](const std::optional<TrainingView::Checkpoint>& value) {
    return value ? OrderedJson{{"step", value->step}, {"path", value->path}} : OrderedJson(nullptr);
  };
  return {
      {"step", training.step},
      {"steps", training.steps},
      {"loss", training.loss},
      {"tokens_per_s", training.tokens_per_s},
      {"eta_s", run.alive ? OrderedJson(training.eta_at(now)) : OrderedJson(nullptr)},
      {"validation", validation(training.validation)},
      {"best", validation(training.best)},
      {"checkpoint", checkpoint(training.checkpoint)},
      {"best_checkpoint", checkpoint(training.best_checkpoint)},
      {"memory_step", run.alive && training.memory_step ? OrderedJson(*training.memory_step)
                                                        : OrderedJson(nullptr)},
      {"profiles", profiles(training, run)},
      {"go_on", can_go_on(training, run) ? OrderedJson(go_on_command(run)) : OrderedJson(nullptr)}};
}

}  // namespace sortie::launcher
