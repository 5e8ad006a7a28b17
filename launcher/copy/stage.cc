#include "launcher/copy/stage.h"

#include <fmt/core.h>

#include "common/base/quantity.h"
#include "common/config/stage.h"
#include "common/files/piece.h"
#include "launcher/console/console.h"
#include "launcher/copy/progress.h"

namespace sortie::launcher {
namespace asio = boost::asio;

namespace {

/// Makes files read-only, because several jobs share them; folders must remain removable.
void make_read_only(LocalTree& tree) {
  for (wire::FileEntry& entry : tree.entries) {
    if (entry.kind == wire::FileKind::file) entry.mode = (entry.mode & 0555) | 0400;
    if (entry.kind == wire::FileKind::folder) entry.mode |= 0700;
  }
}

Result<std::string> checked_folder(const std::string& folder) {
  if (folder.starts_with('/') && folder.size() < 4096 && folder.find('\0') == std::string::npos)
    return folder;
  return fail(ErrorCode::protocol, "runner: names a folder of staged files that can not be");
}

}  // namespace

Stager::Stager(asio::any_io_executor executor, const config::RunnerConfig& runner,
               std::size_t hosts, std::function<void(std::string)> on_note)
    : executor_(executor), runner_(runner), hosts_(hosts), on_note_(std::move(on_note)) {}

asio::awaitable<Result<>> Stager::read() {
  std::vector<files::ScanRoot> roots;
  for (const std::string& text : runner_.stage) {
    const config::StageItem item = config::parse_stage_item(text);
    roots.push_back({item.path, item.name});
  }
  std::function<void(const ReadProgress&)> on_progress = [this](const ReadProgress& now) {
    reading_ = now;
  };
  auto tree = co_await read_local_tree(std::move(roots), std::move(on_progress));
  if (!tree) co_return std::unexpected(with_context(std::move(tree).error(), "runner.stage"));
  tree_ = std::move(*tree);
  make_read_only(tree_);
  hash_ = files::tree_hash(tree_.entries);
  const bool relay = relay_pays(RelayMode::automatic, hosts_, tree_.bytes);
  upload_ = std::make_shared<TreeUpload>(executor_, tree_, hosts_, relay, on_note_);
  co_return Result<>();
}

asio::awaitable<Result<std::string>> Stager::stage(std::size_t index,
                                                   std::shared_ptr<HostSession> session,
                                                   std::string build) {
  const auto greeted = co_await session->greet(std::move(build));
  if (!greeted) co_return std::unexpected(greeted.error());
  session->expect_progress(work_patience(runner_));
  wire::FilesOpen order;
  order.purpose = wire::FilesPurpose::stage;
  order.key = hash_;
  order.cache_bytes = static_cast<std::uint64_t>(runner_.stage_cache_gib) << 30;
  order.heartbeat_interval_ms = static_cast<std::uint32_t>(runner_.heartbeat_interval.count());
  order.heartbeat_timeout_ms = static_cast<std::uint32_t>(runner_.heartbeat_timeout.count());
  const auto done = co_await upload_->send_to(index, session, std::move(order));
  if (!done) co_return std::unexpected(done.error());
  ++staged_;
  from_launcher_ += done->bytes_from_launcher;
  from_hosts_ += done->bytes_from_hosts;
  co_return checked_folder(done->folder);
}

Progress Stager::progress() const {
  Progress now = shown_progress(reading_);
  if (upload_)
    now = {fmt::format("to {}", counted(hosts_, "host")), upload_->bytes_done(),
           upload_->bytes_wanted()};
  now.what = "runner.stage: " + now.what;
  return now;
}

std::string Stager::summary() const {
  const bool all = staged_ == hosts_;
  std::string text =
      fmt::format("{}, {}, staged on {}{}", counted(tree_.files, "file"), byte_count(tree_.bytes),
                  all ? "" : fmt::format("{} of ", staged_), counted(hosts_, "host"));
  if (from_launcher_ + from_hosts_ == 0) return all ? text + ": all there already" : text;
  text += fmt::format(": {} sent from here", byte_count(from_launcher_));
  if (from_hosts_ > 0) text += fmt::format(", {} from host to host", byte_count(from_hosts_));
  return text;
}

}  // namespace sortie::launcher
