#include "launcher/run/run_journal.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <nlohmann/json.hpp>

#include "common/base/atomic_file.h"
#include "common/base/fd.h"
#include "common/base/json_text.h"
#include "launcher/run/attempt_folder.h"

namespace sortie::launcher {
namespace {
/// A failed write is reported again after this time without failures.
constexpr std::chrono::minutes kQuiet{1};
}  // namespace

RunJournal::RunJournal(const std::filesystem::path& run, bool tensorboard, std::uint32_t attempt)
    : run_(run),
      events_(run / "events.jsonl"),
      metrics_(run / "metrics.jsonl"),
      logs_(std::make_unique<RankLogs>(attempt_folder(run, attempt))),
      trackers_(run, tensorboard) {}

bool RunJournal::look_for_newer() {
  if (!superseded_ && !newer_.empty() && ::access(newer_.c_str(), F_OK) == 0) superseded_ = true;
  return superseded_;
}

std::optional<Error> RunJournal::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

void RunJournal::note(const Result<>& written) {
  if (written) return;
  {
    const std::lock_guard lock(mutex_);
    if (!trouble_) trouble_ = written.error();
  }
  const auto now = std::chrono::steady_clock::now();
  const bool news = !last_trouble_ || now - *last_trouble_ > kQuiet;
  last_trouble_ = now;
  if (news && on_trouble_) on_trouble_(written.error());
}

void RunJournal::guarded(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    note(fail(ErrorCode::internal, fmt::format("run folder: {}", error.what())));
  }
}

void RunJournal::event(std::string_view line) {
  if (!look_for_newer()) note(events_.append(line));
}

void RunJournal::begin_attempt(std::uint32_t attempt, const std::string& plan_json) {
  if (look_for_newer()) return;
  logs_->finish();
  logs_->flush();
  lost_before_ += logs_->lost_bytes();
  const std::filesystem::path folder = attempt_folder(run_, attempt);
  for (const auto& path : {folder.parent_path(), folder, folder / "logs"})
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
      note(std::unexpected(os_error(errno, path.string())));
  logs_ = std::make_unique<RankLogs>(folder);
  // Written last: readers take the newest attempt with a plan.json as the run's current attempt.
  note(write_file_atomic(folder / "plan.json", plan_json, 0600));
}

void RunJournal::metric(const nlohmann::json& event, double now) {
  if (look_for_newer()) return;
  guarded([&] {
    nlohmann::json line = event;
    line["time"] = now;
    note(metrics_.append(json_text(line) + "\n"));
    trackers_.event(event, now);
  });
  if (trackers_.trouble() && !std::exchange(tracker_trouble_told_, true))
    note(std::unexpected(*trackers_.trouble()));
}

void RunJournal::profile(std::uint32_t rank, const nlohmann::json& trace_events) {
  if (look_for_newer()) return;
  std::string entries;
  for (const auto& entry : trace_events)
    entries += (entries.empty() ? "" : ",\n") + json_text(entry);
  if (!entries.empty())
    note(append_trace(run_ / fmt::format("profile-rank-{}.json", rank), entries));
}

Result<> RunJournal::append_trace(const std::filesystem::path& path, const std::string& entries) {
  constexpr std::string_view kBegin = "{\"traceEvents\":[\n", kEnd = "\n]}\n";
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0)
    return std::unexpected(os_error(errno, path.string()));
  const bool first = info.st_size == 0;
  const std::string bytes =
      fmt::format("{}{}{}", first ? kBegin : std::string_view(",\n"), entries, kEnd);
  const off_t at = first ? 0 : info.st_size - static_cast<off_t>(kEnd.size());
  if (::pwrite(file.get(), bytes.data(), bytes.size(), at) != static_cast<ssize_t>(bytes.size()))
    return std::unexpected(os_error(errno, path.string()));
  return {};
}

void RunJournal::keep(const std::string& name, const std::string& content) {
  if (look_for_newer()) return;
  const std::filesystem::path path = run_ / name;
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  note(error ? fail(ErrorCode::io,
                    fmt::format("{}: {}", path.parent_path().string(), error.message()))
             : write_file_atomic(path, content, 0600));
}

void RunJournal::log(StreamId id, std::string_view bytes) {
  if (look_for_newer()) return;
  note(logs_->append(id, bytes));
  lost_bytes_ = lost_before_ + logs_->lost_bytes();
}

void RunJournal::track(const config::JobConfig& job) {
  guarded([&] { trackers_.enable_wandb(job); });
}

void RunJournal::sign() {
  const auto now = std::chrono::steady_clock::now();
  if (superseded_ || (last_sign_ && now - *last_sign_ < kSignEvery)) return;
  last_sign_ = now;
  // Errors are ignored: the next update may succeed.
  (void)::utimensat(AT_FDCWD, (run_ / "logs").c_str(), nullptr, 0);
}

void RunJournal::flush() {
  sign();
  if (events_.waiting_bytes() + metrics_.waiting_bytes() > 0 && look_for_newer()) return;
  note(events_.flush());
  note(metrics_.flush());
  logs_->flush();
}

void RunJournal::finish(int exit_code) {
  if (look_for_newer()) return;
  logs_->finish();
  flush();
  guarded([&] { trackers_.finish(exit_code); });
  if (trackers_.trouble() && !std::exchange(tracker_trouble_told_, true))
    note(std::unexpected(*trackers_.trouble()));
  const std::size_t dropped = events_.dropped_lines() + metrics_.dropped_lines();
  if (dropped > 0)
    note(fail(
        ErrorCode::io,
        fmt::format("{} lines of events.jsonl and metrics.jsonl could not be written", dropped)));
}

}  // namespace sortie::launcher
