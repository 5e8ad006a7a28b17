#include "launcher/copy/local_tree.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <filesystem>
#include <set>

#include "common/files/entry_path.h"
#include "common/files/manifest.h"

namespace sortie::launcher {
namespace asio = boost::asio;
namespace fs = std::filesystem;

namespace {

/// Base name of `local`: "b" for "a/b/"; for ".", the name of the folder.
std::string own_name(const std::string& local) {
  std::error_code error;
  fs::path path = fs::absolute(local, error).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return path.filename().string();
}

bool names_folder(const std::string& remote) {
  if (remote.ends_with('/')) return true;
  const std::string_view name = files::name_of(remote);
  return remote == "~" || name == "." || name == "..";
}

/// Sets progress.to_read, for which it lists all files. What can not be listed does not count; it
/// is reported when the files are read.
asio::awaitable<void> list_files(std::vector<files::ScanRoot> roots, ReadProgress& progress,
                                 const std::function<void(const ReadProgress&)>& on_progress) {
  files::TreeScan scan(std::move(roots));
  scan.only_list();
  scan.leave_out_failures([](const Error&) {});
  std::uint64_t bytes = 0;
  while (progress.listed < files::ManifestReader::kMaxEntries) {
    const auto step = scan.step();
    if (!step || step->done) break;
    if (step->entry) {
      ++progress.listed;
      bytes += step->entry->size;
      on_progress(progress);
    }
    co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable);
  }
  progress.to_read = bytes;
}

}  // namespace

asio::awaitable<Result<LocalTree>> read_local_tree(
    std::vector<files::ScanRoot> roots, std::function<void(const ReadProgress&)> on_progress,
    std::function<void(const Error&)> on_left_out) {
  ReadProgress progress;
  if (on_progress) co_await list_files(roots, progress, on_progress);
  LocalTree tree;
  files::TreeScan scan(std::move(roots));
  if (on_left_out) scan.leave_out_failures(std::move(on_left_out));
  std::uint64_t memory = 0;
  for (;;) {
    auto step = scan.step();
    if (!step) co_return std::unexpected(std::move(step).error());
    if (step->done) co_return tree;
    if (step->entry) {
      memory += files::entry_bytes(*step->entry);
      if (memory > files::ManifestReader::kMaxBytes ||
          tree.entries.size() >= files::ManifestReader::kMaxEntries)
        co_return fail(ErrorCode::unsupported, "too many files at once; send parts of the tree");
      tree.bytes += step->entry->size;
      if (step->entry->kind != wire::FileKind::folder) ++tree.files;
      tree.paths.push_back(scan.path_of(tree.entries.size()));
      tree.entries.push_back(std::move(*step->entry));
    }
    progress.hashed = scan.bytes_hashed();
    if (on_progress) on_progress(progress);
    co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable);
  }
}

Result<PushNames> push_names(const std::vector<std::string>& locals, const std::string& remote) {
  PushNames names;
  if (remote.empty()) return fail(ErrorCode::usage, "sortie: REMOTE is empty; name a path");
  const bool into = locals.size() > 1 || names_folder(remote);
  std::set<std::string> seen;
  for (const std::string& local : locals) {
    struct stat info {};
    if (::stat(local.c_str(), &info) != 0)
      return std::unexpected(os_error(errno, local, ErrorCode::not_found));
    std::string name = into ? own_name(local) : std::string(files::name_of(remote));
    if (auto checked = files::check_entry_name(name); !checked)
      return fail(ErrorCode::usage,
                  fmt::format("sortie: {}: {}", into ? local : remote, checked.error().message));
    if (!seen.insert(name).second)
      return fail(ErrorCode::usage,
                  fmt::format("sortie: two of the files are called '{}' in {}; push them one after"
                              " the other",
                              files::shown_path(name), remote));
    names.roots.push_back({local, std::move(name)});
  }
  if (into) {
    names.folder = remote;
  } else {
    const std::string_view parent = files::parent_of(remote);
    names.folder = !parent.empty() ? std::string(parent) : remote.starts_with('/') ? "/" : "~";
  }
  return names;
}

}  // namespace sortie::launcher
