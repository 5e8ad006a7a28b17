#include "runner/health/reporter.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace sortie::runner::health {

using sortie::health::Finding;
using sortie::health::Kind;

Reporter::Reporter(int fd) : fd_(fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0) ::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

/// Returns false if the line was not written; it is then counted as dropped.
bool Reporter::write(const Finding& finding, double now) {
  if (now - minute_ >= 60) {
    minute_ = now;
    lines_ = 0;
  }
  if (lines_ >= kMostAMinute && finding.kind != Kind::dropped) return ++dropped_, false;
  // A pipe accepts a line of this size completely or not at all.
  const std::string line = sortie::health::to_line(finding) + '\n';
  const ssize_t count = ::write(fd_, line.data(), line.size());
  if (count == static_cast<ssize_t>(line.size())) return ++lines_, true;
  if (count < 0 && (errno == EPIPE || errno == EBADF)) closed_ = true;
  return ++dropped_, false;
}

void Reporter::say(const Finding& finding, double now) {
  const auto [entry, fresh] = said_.try_emplace(
      Key{finding.kind, finding.code, finding.recovery.has_value(), finding.device}, Said{});
  Said& said = entry->second;
  if (!fresh && now - said.at < kRepeatSeconds) {
    said.more += finding.count;
    said.last = finding;
    return;
  }
  Finding told = finding;
  told.count += std::exchange(said.more, 0);
  write(told, now);
  said.at = now;
  if (said_.size() > kMostKeys) forget_old(now);
}

void Reporter::tick(double now) {
  for (auto& [key, said] : said_) {
    if (said.more == 0 || now - said.at < kRepeatSeconds) continue;
    said.last.count = std::exchange(said.more, 0);
    said.at = now;
    write(said.last, now);
  }
  if (dropped_ == 0 || (lines_ >= kMostAMinute && now - minute_ < 60)) return;
  Finding finding{.kind = Kind::dropped};
  finding.count = dropped_;
  if (write(finding, now)) dropped_ = 0;
}

std::optional<double> Reporter::due() const {
  std::optional<double> at;
  for (const auto& [key, said] : said_)
    if (said.more > 0)
      at = std::min(at.value_or(said.at + kRepeatSeconds), said.at + kRepeatSeconds);
  if (dropped_ > 0) at = std::min(at.value_or(minute_ + 60), minute_ + 60);
  return at;
}

/// Removes the oldest entries; the repetitions that they had counted are counted as dropped.
void Reporter::forget_old(double now) {
  std::erase_if(said_, [&](const auto& entry) {
    return entry.second.more == 0 && now - entry.second.at >= kRepeatSeconds;
  });
  while (said_.size() > kMostKeys) {
    const auto oldest =
        std::ranges::min_element(said_, {}, [](const auto& entry) { return entry.second.at; });
    dropped_ += oldest->second.more;
    said_.erase(oldest);
  }
}

}  // namespace sortie::runner::health
