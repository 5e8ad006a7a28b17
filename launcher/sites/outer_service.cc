#include "launcher/sites/outer_service.h"

#include <fmt/core.h>
#include <sys/random.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/check.h"
#include "common/base/hex.h"

namespace sortie::launcher {
namespace {

using OuterClock = std::chrono::steady_clock;
constexpr std::chrono::seconds kWriteAgain{1};
constexpr std::chrono::minutes kTellAgain{1};

/// Returns 32 random bytes from the kernel, in hexadecimal.
std::string new_link_key() {
  std::string bytes(32, '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::getrandom(bytes.data() + done, bytes.size() - done, 0);
    SORTIE_CHECK(count > 0 || errno == EINTR, "getrandom: errno {}", errno);
    if (count > 0) done += static_cast<std::size_t>(count);
  }
  return hex(bytes);
}

}  // namespace

OuterService::OuterService(Parts parts, OuterLog log)
    : parts_(std::move(parts)),
      log_(std::move(log)),
      coordinator_(parts_.settings, new_link_key),
      timer_(parts_.executor),
      retry_(parts_.executor) {}

Result<std::unique_ptr<OuterService>> OuterService::open(const std::filesystem::path& run,
                                                         unsigned epoch, Parts parts) {
  SORTIE_ASSIGN_OR_RETURN(OuterLog::Opened opened, OuterLog::open(run, epoch, parts.executor));
  std::unique_ptr<OuterService> service(new OuterService(std::move(parts), std::move(opened.log)));
  if (const Result<> read = service->coordinator_.restore(opened.lines); !read)
    return std::unexpected(with_context(read.error(), (run / "outer.log").string()));
  return service;
}

OuterCoordinator::Time OuterService::now() const {
  return std::chrono::duration_cast<OuterCoordinator::Time>(OuterClock::now().time_since_epoch());
}

void OuterService::site_up(const std::string& site, std::uint32_t attempt) {
  take(coordinator_.site_up(now(), site, attempt));
}
void OuterService::site_down(const std::string& site, bool for_good) {
  take(coordinator_.site_down(now(), site, for_good));
}
void OuterService::add_site(const std::string& site) {
  take(coordinator_.add_site(now(), site));
}
void OuterService::remove_site(const std::string& site) {
  take(coordinator_.remove_site(now(), site));
}
void OuterService::stop() {
  take(coordinator_.stop(now()));
}

Result<> OuterService::question(const std::string& site, std::uint32_t rank,
                                const nlohmann::json& event) {
  SORTIE_ASSIGN_OR_RETURN(const training::NumberedQuestion asked,
                          training::parse_outer_question(event));
  take(coordinator_.ask(now(), site, rank, asked));
  return {};
}

void OuterService::close() {
  closed_ = true;
  *alive_ = false;
  timer_.cancel();
  retry_.cancel();
}

/// Delivers a step after its lines are on disk, and after all earlier steps.
void OuterService::take(OuterCoordinator::Step step) {
  if (closed_) return;
  const bool empty = step.lines.empty() && step.messages.empty() && step.notes.empty() && !step.end;
  if (!empty) {
    if (waiting_.empty() && step.lines.empty()) {
      deliver(step);
    } else {
      waiting_.push_back(std::move(step));
      write_next();
    }
  }
  set_timer();
}

void OuterService::write_next() {
  while (!waiting_.empty() && !writing_ && !closed_) {
    if (waiting_.front().lines.empty()) {
      const OuterCoordinator::Step step = std::move(waiting_.front());
      waiting_.pop_front();
      deliver(step);
      continue;
    }
    writing_ = true;
    log_.append(waiting_.front().lines, [this, alive = alive_](const Result<>& written) {
      if (!*alive) return;
      writing_ = false;
      if (written) {
        waiting_.front().lines.clear();
        return write_next();
      }
      // Another supervisor has adopted the run.
      if (written.error().code == ErrorCode::lost) return close();
      const auto time = OuterClock::now();
      if (!trouble_ || time - *trouble_ > kTellAgain) {
        trouble_ = time;
        parts_.on_trouble(written.error());
      }
      retry_.set(kWriteAgain, [this] { write_next(); });
    });
  }
}

void OuterService::deliver(const OuterCoordinator::Step& step) {
  for (const OuterCoordinator::Message& message : step.messages)
    parts_.say(message.site, message.rank,
               training::to_json(message.answer, message.number).dump());
  for (const OuterCoordinator::Note& note : step.notes) parts_.on_note(note);
  if (step.end) parts_.on_end(*step.end);
}

void OuterService::set_timer() {
  const auto due = coordinator_.wake_at();
  timer_.cancel();
  if (!due || closed_) return;
  timer_.set_at(OuterClock::time_point(std::chrono::duration_cast<OuterClock::duration>(
                    *due + std::chrono::milliseconds(1))),
                [this] { take(coordinator_.tick(now())); });
}

}  // namespace sortie::launcher
