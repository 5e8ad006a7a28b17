#include "runner/health/host_watch.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

namespace sortie::runner::health {

std::optional<Finding> ClockWatch::look(double wall, double boot) {
  const double difference = wall - boot;
  const double step = difference_ ? difference - *difference_ : 0;
  difference_ = difference;
  if (std::abs(step) < kStepSeconds) return std::nullopt;
  Finding finding{.kind = Kind::clock_step, .source = "clock"};
  finding.value = step;
  return finding;
}

std::optional<Finding> MemoryWatch::look() {
  const oom::Counters now = read();
  const oom::Counters before = std::exchange(last_, now);
  if (!now.rose_since(before)) return std::nullopt;
  Finding finding{.kind = Kind::oom_kill, .source = "cgroup"};
  finding.text = now.groups_rose_since(before)
                     ? "in the memory group of this job's runner, or below it"
                     : "on this host";
  return finding;
}

std::optional<Finding> RoomState::look(const Room& room, std::uint64_t floor) {
  floor = std::min(floor, room.all_bytes / 20);
  const bool few_bytes = room.bytes < floor;
  const bool few_inodes = room.inodes < std::min(kLeastInodes, room.all_inodes / 20);
  // Report again only after a clear improvement: a job that writes and deletes stays near the
  // limit.
  if (!few_bytes && !few_inodes && room.bytes > floor + floor / 10) told_ = false;
  if ((!few_bytes && !few_inodes) || std::exchange(told_, true)) return std::nullopt;
  Finding finding{.kind = Kind::space, .source = "disk"};
  finding.value = few_bytes ? static_cast<double>(room.bytes) : -1;
  return finding;
}

RoomWatch::RoomWatch(std::vector<std::string> folders, std::uint64_t floor,
                     std::chrono::milliseconds tick, Inbox& inbox)
    : folders_(std::move(folders)), floor_(floor), tick_(tick), inbox_(inbox) {
  if (!folders_.empty()) std::thread([this] { run(); }).detach();
}

void RoomWatch::run() {
  std::vector<RoomState> states(folders_.size());
  for (;; std::this_thread::sleep_for(tick_))
    for (std::size_t i = 0; i < folders_.size(); ++i) {
      folder_ = i;
      asked_ms_ = static_cast<std::int64_t>(steady_seconds() * 1000);
      struct statvfs told {};
      const int failed = ::statvfs(folders_[i].c_str(), &told);
      asked_ms_ = 0;
      if (failed != 0) continue;  // a work folder may be missing
      RoomState::Room room{std::uint64_t{told.f_bavail} * told.f_frsize,
                           std::uint64_t{told.f_blocks} * told.f_frsize, told.f_favail,
                           told.f_files};
      auto finding = states[i].look(room, floor_);
      if (!finding) continue;
      finding->device = folders_[i];
      inbox_.put(std::move(*finding));
    }
}

std::optional<Finding> RoomWatch::silence(double now) {
  const std::int64_t asked = asked_ms_;
  const double waited = asked == 0 ? 0 : now - static_cast<double>(asked) / 1000;
  if (waited < kSilentSeconds) {
    silence_told_ = false;
    return std::nullopt;
  }
  if (std::exchange(silence_told_, true)) return std::nullopt;
  Finding finding{.kind = Kind::storage, .device = folders_[folder_], .source = "disk"};
  finding.value = waited;
  return finding;
}

}  // namespace sortie::runner::health
