#include "trainer/state/scrubber.h"

#include <fmt/core.h>

#include <algorithm>

#include "trainer/checkpoint/find.h"
#include "trainer/state/save_thread.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

/// Whether it is damaged, and not removed or replaced while it was read.
bool is_still_damaged(const CheckpointEntry& entry, const std::stop_token& stop) {
  std::error_code ignored;
  if (!fs::exists(entry.folder / kManifestFile, ignored)) return false;
  const auto checked = check_checkpoint(entry.folder, CheckDepth::hashes, stop);
  return !checked && checked.error().code != ErrorCode::interrupted;
}

void scrub_folder(const CheckpointStore& store, const fs::path& folder, const std::stop_token& stop,
                  ScrubReport& report) {
  const auto entries = list_checkpoints(folder, CheckDepth::sizes);
  if (!entries) return;
  std::int64_t newest_good = 0;
  std::vector<std::pair<const CheckpointEntry*, std::string>> damaged;
  for (const CheckpointEntry& entry : *entries) {
    if (stop.stop_requested()) break;
    ++report.checked;
    const auto checked = check_checkpoint(entry.folder, CheckDepth::hashes, stop);
    if (checked)
      newest_good = std::max(newest_good, entry.step);
    else if (is_still_damaged(entry, stop))
      damaged.emplace_back(&entry, checked.error().message);
  }
  const bool best = folder.filename() == kBestFolder;
  if (!best) report.newest_good = newest_good;
  // Only after all have been read is it known whether a good one is left.
  if (stop.stop_requested()) return;
  for (const auto& [entry, problem] : damaged) {
    ++report.damaged;
    const std::string what =
        fmt::format("checkpoint {} is damaged: {}", entry->folder.string(), problem);
    if (newest_good == 0 && !best) {
      report.notes.push_back(what +
                             "; it stays, because no good one is left: copy it from elsewhere");
      continue;
    }
    const auto moved = store.quarantine(entry->folder);
    std::error_code ignored;  // it may be gone although an error followed
    if (best && (moved || !std::filesystem::exists(entry->folder, ignored)))
      report.moved_best = std::max(report.moved_best, entry->step);
    report.notes.push_back(
        moved ? fmt::format("{}; moved to {}", what, moved->string())
              : fmt::format("{}; it could not be moved: {}", what, moved.error().message));
  }
}

}  // namespace

ScrubReport scrub(const CheckpointStore& store, const std::stop_token& stop) {
  ScrubReport report;
  if (!store.check_owner()) return report;
  scrub_folder(store, store.save_dir(), stop, report);
  scrub_folder(store, store.save_dir() / kBestFolder, stop, report);
  return report;
}

Scrubber::Scrubber(CheckpointStore store, std::chrono::milliseconds interval)
    : store_(std::move(store)), interval_(interval), thread_([this] { run(); }) {}

Scrubber::~Scrubber() {
  {
    const std::lock_guard lock(mutex_);
    stop_.request_stop();
    changed_.notify_all();
  }
  thread_.join();
}

std::vector<std::string> Scrubber::take_notes() {
  const std::lock_guard lock(mutex_);
  return std::exchange(notes_, {});
}

std::int64_t Scrubber::take_moved_best() {
  const std::lock_guard lock(mutex_);
  return std::exchange(moved_best_, 0);
}

std::int64_t Scrubber::newest_good() const {
  const std::lock_guard lock(mutex_);
  return newest_good_;
}

void Scrubber::run() {
  lower_thread_priority();
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, interval_, [this] { return stop_.stop_requested(); })) {
    lock.unlock();
    ScrubReport report = scrub(store_, stop_.get_token());
    lock.lock();
    newest_good_ = report.newest_good;
    if (report.moved_best > 0) moved_best_ = report.moved_best;
    std::ranges::move(report.notes, std::back_inserter(notes_));
  }
}

}  // namespace sortie::trainer
