// Attempt: staging. Files are read once, before any connection is made, then sent to every host.
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "launcher/supervise/attempt.h"

namespace sortie::launcher {

boost::asio::awaitable<bool> Attempt::read_staged() {
  if (job_.runner.stage.empty()) co_return true;
  stager_ =
      std::make_unique<Stager>(parts_.executor, job_.runner, hosts_.size(),
                               [this](const std::string& text) { parts_.console.message(text); });
  stage_pace_.emplace(parts_.console.has_status());
  const Result<> read = co_await stager_->read();
  stage_pace_.reset();
  if (read) co_return true;
  blame_files(read.error());
  co_return false;
}

void Attempt::blame_files(const Error& error) {
  Cause cause;
  cause.what = Cause::What::unreachable;
  cause.message = error.message;
  cause.exit_code = exit_code_for(error.code);
  blame(std::move(cause));
}

boost::asio::awaitable<void> Attempt::stage_on_hosts() {
  stage_pace_.emplace(parts_.console.has_status());
  co_await for_all_hosts(&Attempt::stage_host);
  stage_pace_.reset();
  note_staged();
}

/// Large files take minutes: also without a terminal the user sees how far they are.
void Attempt::show_stage_progress() {
  const std::optional<std::string> text = stage_pace_->text(stager_->progress());
  if (text && parts_.console.has_status())
    parts_.console.progress(*text);
  else if (text)
    parts_.console.message(*text);
}

boost::asio::awaitable<void> Attempt::stage_host(std::size_t index) {
  Host& host = hosts_[index];
  const auto session = host.session;
  auto staged = co_await stager_->stage(index, session, parts_.binary.sha256());
  if (staged) {
    host.stage_folder = std::move(*staged);
  } else {
    host.state = HostState::lost;
    host.error = std::move(staged).error();
  }
}

void Attempt::note_staged() {
  parts_.console.message(stager_->summary());
  nlohmann::ordered_json event;
  event["hash"] = stager_->hash();
  event["summary"] = stager_->summary();
  parts_.folder.event(JournalEvent::staged, event);
}

}  // namespace sortie::launcher
