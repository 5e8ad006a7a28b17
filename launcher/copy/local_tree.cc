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

/// A list of files that have not been read.
struct ListedTree {
  LocalTree tree;
  std::vector<bool> is_root;  // of each entry: a symlink is followed
};

Result<> check_amount(std::uint64_t memory, std::size_t entries) {
  if (memory <= files::ManifestReader::kMaxBytes && entries < files::ManifestReader::kMaxEntries)
    return {};
  return fail(ErrorCode::unsupported, "too many files at once; send parts of the tree");
}

asio::awaitable<Result<ListedTree>> list_tree(
    std::vector<files::ScanRoot> roots, ReadProgress& progress,
    const std::function<void(const ReadProgress&)>& on_progress,
    const std::function<void(const Error&)>& on_left_out) {
  files::TreeScan scan(std::move(roots));
  scan.only_list();
  if (on_left_out) scan.leave_out_failures(on_left_out);
  ListedTree listed;
  std::uint64_t bytes = 0, memory = 0;
  for (;;) {
    auto step = scan.step();
    if (!step) co_return std::unexpected(std::move(step).error());
    if (step->done) break;
    if (step->entry) {
      memory += files::entry_bytes(*step->entry);
      const Result<> bounded = check_amount(memory, listed.tree.entries.size());
      if (!bounded) co_return std::unexpected(bounded.error());
      bytes += step->entry->size;
      listed.tree.paths.push_back(scan.path_of(listed.tree.entries.size()));
      listed.tree.entries.push_back(std::move(*step->entry));
      listed.is_root.push_back(step->is_root);
      ++progress.listed;
      if (on_progress) on_progress(progress);
    }
    co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable);
  }
  progress.to_read = bytes;
  co_return listed;
}

/// Replaces the entry by the complete one. Adds what it reads to progress.hashed.
asio::awaitable<Result<>> hash_file(std::string path, bool follow, wire::FileEntry& entry,
                                    ReadProgress& progress,
                                    const std::function<void(const ReadProgress&)>& on_progress) {
  auto hasher = files::FileHasher::open(std::move(path), entry, follow);
  if (!hasher) co_return std::unexpected(std::move(hasher).error());
  while (!hasher->done()) {
    const auto count = hasher->more();
    if (!count) co_return std::unexpected(count.error());
    progress.hashed += *count;
    if (on_progress) on_progress(progress);
    co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable);
  }
  entry = hasher->take();
  co_return Result<>();
}

}  // namespace

asio::awaitable<Result<LocalTree>> read_local_tree(
    std::vector<files::ScanRoot> roots, std::function<void(const ReadProgress&)> on_progress,
    std::function<void(const Error&)> on_left_out) {
  ReadProgress progress;
  auto listed = co_await list_tree(std::move(roots), progress, on_progress, on_left_out);
  if (!listed) co_return std::unexpected(std::move(listed).error());
  LocalTree tree;
  std::uint64_t memory = 0;
  for (std::size_t i = 0; i < listed->tree.entries.size(); ++i) {
    wire::FileEntry& entry = listed->tree.entries[i];
    std::string& path = listed->tree.paths[i];
    if (entry.kind == wire::FileKind::file) {
      const Result<> hashed =
          co_await hash_file(path, listed->is_root[i], entry, progress, on_progress);
      if (!hashed && !on_left_out) co_return std::unexpected(hashed.error());
      if (!hashed) {
        on_left_out(hashed.error());
        continue;
      }
    }
    memory += files::entry_bytes(entry);
    const Result<> bounded = check_amount(memory, tree.entries.size());
    if (!bounded) co_return std::unexpected(bounded.error());
    tree.bytes += entry.size;
    if (entry.kind != wire::FileKind::folder) ++tree.files;
    tree.paths.push_back(std::move(path));
    tree.entries.push_back(std::move(entry));
  }
  co_return tree;
}

Progress shown_progress(const ReadProgress& reading) {
  if (reading.to_read == 0) return {"listing files", reading.listed, 0, "files and folders"};
  return {"reading files", reading.hashed, reading.to_read};
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
    if (into && name.empty())
      return fail(
          ErrorCode::usage,
          fmt::format("sortie: {}: the root of the file system can not be pushed, because it "
                      "has no name; name what is in it: {}*",
                      local, local.ends_with('/') ? local : local + '/'));
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
