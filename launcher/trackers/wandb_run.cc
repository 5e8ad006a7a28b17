#include "launcher/trackers/wandb_run.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "common/base/host_name.h"

namespace sortie::launcher {
namespace {

namespace fs = std::filesystem;
using Writer = protozero::pbf_writer;
using Reader = protozero::pbf_reader;
using Values = std::map<std::string, std::string>;

// Field numbers of a Record and of the messages in it.
enum RecordField : protozero::pbf_tag_type {
  kNumber = 1,
  kHistory = 2,
  kSummary = 3,
  kRun = 17,
  kExit = 18,
  kHeader = 21
};
constexpr protozero::pbf_tag_type kItemKey = 1, kItemNestedKey = 2, kItemJson = 16;

std::string record(std::int64_t number, RecordField kind, const std::string& message) {
  std::string out;
  Writer writer(out);
  writer.add_int64(kNumber, number);
  writer.add_message(kind, message);
  return out;
}

void add_items(Writer& writer, protozero::pbf_tag_type field, protozero::pbf_tag_type key_field,
               const Values& values) {
  for (const auto& [key, json] : values) {
    Writer item(writer, field);
    item.add_string(key_field, key);
    item.add_string(kItemJson, json);
  }
}

std::string json_number(double value) {
  return nlohmann::json(value).dump();  // null for NaN, as in W&B
}

}  // namespace

std::string wandb_header_record(std::int64_t number) {
  std::string message;
  Writer writer(message);
  {
    Writer version(writer, 1);
    version.add_string(1, "0.16.0");  // version of the writer: the file uses nothing newer
    version.add_string(2, "0.12.0");  // the oldest version that can read it
  }
  return record(number, kHeader, message);
}

std::string wandb_run_record(std::int64_t number, const std::string& id,
                             const WandbSettings& settings, const std::string& host,
                             double start_time) {
  std::string message;
  Writer writer(message);
  writer.add_string(1, id);
  writer.add_string(3, settings.project);
  {
    Writer config(writer, 4);
    add_items(config, 1, kItemKey, settings.config);
  }
  if (!settings.group.empty()) writer.add_string(6, settings.group);
  writer.add_string(8, settings.name.empty() ? id : settings.name);
  for (const std::string& tag : settings.tags) writer.add_string(10, tag);
  writer.add_string(13, host);
  {
    Writer time(writer, 17);
    const double seconds = std::floor(start_time);
    time.add_int64(1, static_cast<std::int64_t>(seconds));
    time.add_int32(2, static_cast<std::int32_t>((start_time - seconds) * 1e9));
  }
  return record(number, kRun, message);
}

std::string wandb_history_record(std::int64_t number, std::int64_t step, const Values& values) {
  std::string message;
  Writer writer(message);
  add_items(writer, 1, kItemNestedKey, values);
  {
    Writer place(writer, 2);
    place.add_int64(1, step);
  }
  return record(number, kHistory, message);
}

std::string wandb_summary_record(std::int64_t number, const Values& values) {
  std::string message;
  Writer writer(message);
  add_items(writer, 1, kItemKey, values);
  return record(number, kSummary, message);
}

std::string wandb_exit_record(std::int64_t number, int exit_code) {
  std::string message;
  Writer writer(message);
  writer.add_int32(1, exit_code);
  return record(number, kExit, message);
}

Result<WandbRun> WandbRun::open(const fs::path& folder, const std::string& id,
                                const WandbSettings& settings, double now) {
  // The name of the folder contains the date and time of the id, "20261121-095400-k3f9".
  std::string when = id.substr(0, 15);
  std::ranges::replace(when, '-', '_');
  const fs::path place = folder / fmt::format("offline-run-{}-{}", when, id);
  std::error_code error;
  fs::create_directories(place, error);
  if (error) return std::unexpected(os_error(error.value(), place.string()));
  const fs::path file = place / fmt::format("run-{}.wandb", id);
  SORTIE_ASSIGN_OR_RETURN(WandbLog log, WandbLog::open(file));
  WandbRun run(std::move(log));
  if (!run.log_.empty()) {
    SORTIE_TRY(run.resume());
    fs::remove(file.string() + ".synced", error);  // the uploaded data is no longer complete
  }
  if (run.number_ == 0) SORTIE_TRY(run.begin(id, settings, now));
  return run;
}

Result<> WandbRun::begin(const std::string& id, const WandbSettings& settings, double now) {
  start_time_ = now;
  SORTIE_TRY(log_.append(wandb_header_record(++number_)));
  return log_.append(wandb_run_record(++number_, id, settings, host_name("host"), now));
}

/// Reads a row of the file: the summary has the last values of all rows.
void WandbRun::read_row(std::string_view message) {
  Reader history(message.data(), message.size());
  while (history.next()) {
    if (history.tag() == 1) {
      std::string key, json;
      Reader item = history.get_message();
      while (item.next()) {
        if (item.tag() == kItemNestedKey)
          key = item.get_string();
        else if (item.tag() == kItemJson)
          json = item.get_string();
        else
          item.skip();
      }
      if (key.starts_with('_') || admits(key)) summary_[key] = json;
    } else if (history.tag() == 2) {
      Reader step = history.get_message();
      while (step.next(1)) last_step_ = std::max(last_step_, step.get_int64());
    } else {
      history.skip();
    }
  }
}

/// Reads the state from the file, and truncates a summary and exit record at its end.
Result<> WandbRun::resume() try {
  SORTIE_ASSIGN_OR_RETURN(const std::string bytes, log_.read());
  std::uint64_t end = 7;
  bool closing = false;
  const std::uint64_t good =
      scan_wandb_file(bytes, [&](std::uint64_t begin, std::string_view message) {
        Reader reader(message.data(), message.size());
        std::int64_t number = 0;
        bool closes = false;
        while (reader.next()) {
          if (reader.tag() == kNumber) {
            number = reader.get_int64();
          } else if (reader.tag() == kHistory) {
            const auto row = reader.get_view();
            read_row({row.data(), row.size()});
          } else if (reader.tag() == kRun) {
            Reader run = reader.get_message();
            while (run.next(17)) {
              Reader time = run.get_message();
              while (time.next(1)) start_time_ = static_cast<double>(time.get_int64());
            }
          } else {
            closes = reader.tag() == kSummary || reader.tag() == kExit;
            reader.skip();
          }
        }
        if (closes && !closing) end = begin;
        if (!closes) number_ = number;
        closing = closes;
      });
  if (good == 0)
    return fail(ErrorCode::io,
                fmt::format("{}: no file of Weights & Biases; move it away", path().string()));
  return log_.cut(closing ? end : good);
} catch (const protozero::exception& error) {
  return fail(ErrorCode::io,
              fmt::format("{}: damaged, or no file of Weights & Biases ({}); move it away",
                          path().string(), error.what()));
}

Result<> WandbRun::add(std::int64_t step, double now, const std::map<std::string, double>& values) {
  if (step <= last_step_) return {};
  if (step_ && *step_ != step) SORTIE_TRY(flush());
  step_ = step;
  row_["_step"] = fmt::format("{}", step);
  row_["_runtime"] = json_number(now - start_time_);
  row_["_timestamp"] = json_number(now);
  for (const auto& [key, value] : values)
    if (admits(key)) row_[key] = json_number(value);
  return {};
}

bool WandbRun::admits(const std::string& name) {
  if (names_.contains(name)) return true;
  if (names_.size() >= kMaxNames || name.size() > kMaxNameBytes) {
    ++names_left_out_;
    return false;
  }
  names_.insert(name);
  return true;
}

Result<> WandbRun::flush() {
  if (!step_) return {};
  const std::int64_t step = *step_;
  step_.reset();
  last_step_ = step;
  const Values row = std::exchange(row_, {});
  for (const auto& [key, value] : row) summary_[key] = value;
  return log_.append(wandb_history_record(++number_, step, row));
}

Result<> WandbRun::finish(int exit_code) {
  SORTIE_TRY(flush());
  if (!summary_.empty()) SORTIE_TRY(log_.append(wandb_summary_record(++number_, summary_)));
  return log_.append(wandb_exit_record(++number_, exit_code));
}

}  // namespace sortie::launcher
