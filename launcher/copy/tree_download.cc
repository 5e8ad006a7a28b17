#include "launcher/copy/tree_download.h"

#include <fmt/core.h>

#include <sys/stat.h>

#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "common/files/entry_path.h"
#include "common/files/manifest.h"
#include "common/files/tree_write.h"
#include "launcher/console/console.h"
#include "launcher/host/host_texts.h"

namespace sortie::launcher {
namespace asio = boost::asio;

namespace {

/// Limit of the paths of a pull.
constexpr std::size_t kMaxMissing = 1000;

Error unexpected_message(const wire::Message& message) {
  if (const auto* error = std::get_if<wire::RunnerError>(&message)) return file_error(*error);
  return {ErrorCode::protocol,
          fmt::format("runner sent {} in a transfer", wire::message_name(message))};
}

/// Umask of this process: modes are masked as by cp without --preserve.
unsigned current_umask() {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return mask;
}

/// Adapts the host's list to this machine: applies the umask to modes, and drops symlinks that
/// point out of the folder, which programs would follow.
std::vector<wire::FileEntry> admit(std::vector<wire::FileEntry> entries,
                                   std::vector<std::string>& links_left_out) {
  const unsigned mask = current_umask();
  for (wire::FileEntry& entry : entries) {
    entry.mode &= ~mask;
    if (entry.kind != wire::FileKind::symlink || files::stays_inside(entry.path, entry.link_target))
      continue;
    links_left_out.push_back(
        fmt::format("{} -> {}", printable(entry.path), printable(entry.link_target)));
    entry.link_target.clear();
  }
  return entries;
}

/// Makes the writer that compares the host's list with the folder.
Result<files::TreeWriter> make_writer(const std::string& path,
                                      std::vector<wire::FileEntry> entries) {
  SORTIE_ASSIGN_OR_RETURN(files::Folder folder, files::Folder::open(path));
  return files::TreeWriter(std::move(folder), std::move(entries));
}

/// Names a file that has changed or gone since it was listed, and continues without it.
Result<> leave_out(files::TreeWriter& tree, std::uint32_t entry, std::string why,
                   DownloadProgress& progress) {
  if (progress.missing.size() >= kMaxMissing)
    return fail(ErrorCode::data, "too many files changed while they were copied; the last: " + why);
  const std::uint64_t before = tree.missing_bytes();
  SORTIE_TRY(tree.leave_out(entry));
  progress.wanted -= before - tree.missing_bytes();
  progress.missing.push_back({ErrorCode::io, std::move(why)});
  return {};
}

Result<> take_piece(files::TreeWriter& tree, const wire::FilePiece& piece,
                    DownloadProgress& progress) {
  // Sent before the host could know, or because the file has changed again.
  if (tree.left_out(piece.entry)) return {};
  if (!piece.lost.empty()) return leave_out(tree, piece.entry, piece.lost, progress);
  SORTIE_ASSIGN_OR_RETURN(const auto taken, tree.put(piece.entry, piece.piece, piece.bytes));
  if (taken == files::TreeWriter::Taken::wrote) return {};
  if (taken == files::TreeWriter::Taken::had)
    return fail(ErrorCode::protocol, "runner sent a piece that was not asked for");
  return leave_out(tree, piece.entry,
                   fmt::format("{}: received data does not match the announced hash; was the file"
                               " changed while it was sent?",
                               files::shown_path(tree.entries()[piece.entry].path)),
                   progress);
}

void ask(HostSession& session, const files::TreeWriter& tree) {
  const wire::FilesWanted frame;
  files::send_wanted(tree.missing(), frame, [&](wire::FilesWanted part) { session.send(part); });
}

}  // namespace

Error file_error(const wire::RunnerError& error) {
  ErrorCode code = runner_error_code(error);
  for (const ErrorCode known : {ErrorCode::io, ErrorCode::data, ErrorCode::not_found,
                                ErrorCode::usage, ErrorCode::interrupted})
    if (error.code == error_code_name(known)) code = known;
  return {code, error.message};
}

asio::awaitable<Result<wire::FilesDone>> download_tree(std::shared_ptr<HostSession> session,
                                                       wire::FilesOpen order, std::string folder,
                                                       std::uint64_t max_list_bytes,
                                                       DownloadProgress& progress) {
  const auto executor = co_await asio::this_coro::executor;
  session->send(order);
  files::ManifestReader manifest(max_list_bytes);
  while (!manifest.complete()) {
    auto message = co_await session->next();
    if (!message) co_return std::unexpected(std::move(message).error());
    if (std::holds_alternative<wire::FilesProgress>(*message)) continue;  // it is reading files
    if (const auto* error = std::get_if<wire::RunnerError>(&*message);
        error && error->code.starts_with(files::kMissingPath) &&
        progress.missing.size() < kMaxMissing) {
      progress.missing.push_back(file_error(
          {error->code.substr(files::kMissingPath.size()), error->message, error->rank}));
      continue;
    }
    auto* part = std::get_if<wire::FilesManifest>(&*message);
    if (!part) co_return std::unexpected(unexpected_message(*message));
    auto added = manifest.add(std::move(*part));
    if (!added)
      co_return std::unexpected(with_context(std::move(added).error(), "the host's list"));
  }
  if (manifest.entries().empty()) co_return wire::FilesDone{};
  auto tree = make_writer(folder, admit(manifest.take(), progress.links_left_out));
  if (!tree) co_return std::unexpected(std::move(tree).error());
  for (;;) {
    auto compared = tree->inspect();
    if (!compared) co_return std::unexpected(std::move(compared).error());
    if (*compared) break;
    co_await asio::post(executor, asio::use_awaitable);
  }
  wire::FilesDone done;
  progress.wanted = tree->missing_bytes();
  ask(*session, *tree);
  while (tree->missing_bytes() > 0) {
    auto message = co_await session->next();
    if (!message) co_return std::unexpected(std::move(message).error());
    const auto* piece = std::get_if<wire::FilePiece>(&*message);
    if (!piece) co_return std::unexpected(unexpected_message(*message));
    auto taken = take_piece(*tree, *piece, progress);
    if (!taken) co_return std::unexpected(std::move(taken).error());
    done.bytes_from_hosts += piece->bytes.size();
    progress.done = done.bytes_from_hosts;
    session->send(wire::FilesCredit{piece->bytes.size()});
  }
  for (;;) {
    auto settled = tree->settle();
    if (!settled) co_return std::unexpected(std::move(settled).error());
    if (*settled) break;
    co_await asio::post(executor, asio::use_awaitable);
  }
  done.folder = tree->folder().path();
  done.files_changed = tree->files_changed();
  co_return done;
}

}  // namespace sortie::launcher
