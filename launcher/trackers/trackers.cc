#include "launcher/trackers/trackers.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "common/config/fields.h"

namespace sortie::launcher {
namespace {

namespace fs = std::filesystem;

/// File with the id of the W&B run that this run writes, for a supervisor that takes over.
constexpr const char* kFirstRunFile = "wandb-run";

/// Whether `id` has the form of a run id. Checked because it comes from a checkpoint and becomes
/// part of paths.
bool is_run_id(const std::string& id) {
  return id.size() > 15 && id.size() <= 64 && std::ranges::all_of(id, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
         });
}

}  // namespace

void Trackers::enable_wandb(const config::JobConfig& job) {
  const config::LoggerConfig& logger = job.logger;
  if (logger.wandb_mode != "offline") return;
  wandb_settings_ = WandbSettings{
      logger.wandb_project, logger.wandb_group, logger.wandb_name, logger.wandb_tags, {}};
  for (const config::Field& field : config::fields()) {
    const std::string_view section = config::section_of(field);
    if (section.starts_with("runner") || section == "logger" || section == "profiler") continue;
    // The TOML text of a value is also valid JSON, except for tables, which do not occur here.
    wandb_settings_->config[std::string(field.key)] = config::value_text(field, job);
  }
}

void Trackers::note(Error error) {
  if (!trouble_) trouble_ = std::move(error);
}

void Trackers::event(const nlohmann::json& event, double now) {
  // The event was checked on receipt (supervise/rank_event.h).
  const std::string type = event.value("type", "");
  if (type == "start" && wandb_settings_ && !wandb_)
    open_wandb(event.value("first_run", folder_.filename().string()), now);
  if (type != "step" && type != "eval" && type != "round") return;
  const auto step = event.find("step");
  if (step == event.end() || !step->is_number_integer()) return;
  std::map<std::string, double> values;
  for (const auto& [key, value] : event.items())
    if (value.is_number() && key != "step" && key != "steps")
      values[(type == "eval"    ? "validation/"
              : type == "round" ? "sites/"
                                : "train/") +
             key] = value.get<double>();
  if (tensorboard_enabled_) to_tensorboard(step->get<std::int64_t>(), now, values);
  if (wandb_settings_) to_wandb(step->get<std::int64_t>(), now, values);
}

void Trackers::to_tensorboard(std::int64_t step, double now,
                              const std::map<std::string, double>& values) {
  if (!tensorboard_) {
    auto writer = TensorBoardWriter::create(folder_ / "tensorboard", now);
    if (!writer) {
      tensorboard_enabled_ = false;
      return note(std::move(writer).error());
    }
    tensorboard_ = std::move(*writer);
  }
  for (const auto& [tag, value] : values)
    if (auto written = tensorboard_->add_scalar(now, step, tag, value); !written)
      note(std::move(written).error());
}

/// Opens the W&B file. A run that resumes a checkpoint of another run continues that run's file, if
/// it still exists.
void Trackers::open_wandb(std::string first_run, double now) {
  const std::string own = folder_.filename().string();
  if (!is_run_id(first_run)) first_run = own;
  fs::path place = folder_.parent_path() / first_run;
  std::error_code ignored;
  if (!fs::is_directory(place, ignored)) place = folder_;
  auto run = WandbRun::open(place / "wandb", first_run, *wandb_settings_, now);
  if (!run) {
    wandb_settings_.reset();
    return note(std::move(run).error());
  }
  wandb_.emplace(std::move(*run));
  if (auto written = write_file_atomic(folder_ / kFirstRunFile, first_run + "\n", 0600); !written)
    note(std::move(written).error());
}

void Trackers::to_wandb(std::int64_t step, double now,
                        const std::map<std::string, double>& values) {
  if (!wandb_) {  // another supervisor received the event "start"
    auto first_run = read_file(folder_ / kFirstRunFile, 100);
    if (!first_run) first_run = folder_.filename().string();
    open_wandb(first_run->substr(0, first_run->find('\n')), now);
    if (!wandb_) return;
  }
  auto written = wandb_->add(step, now, values);
  if (written && wandb_->names_left_out() > 0)
    note({ErrorCode::data,
          fmt::format(
              "W&B: values with more than {} names, or with names of more than {} bytes, are "
              "left out; use fewer names in step events",
              WandbRun::kMaxNames, WandbRun::kMaxNameBytes)});
  if (written) return;
  note(std::move(written).error());
  wandb_.reset();
  wandb_settings_.reset();
}

void Trackers::finish(int exit_code) {
  if (!wandb_) return;
  if (auto written = wandb_->finish(exit_code); !written) note(std::move(written).error());
  wandb_.reset();
  wandb_settings_.reset();
}

}  // namespace sortie::launcher
