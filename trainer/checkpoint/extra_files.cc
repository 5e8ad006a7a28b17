#include "trainer/checkpoint/extra_files.h"

#include <fcntl.h>
#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "common/base/fd.h"
#include "trainer/checkpoint/file_ops.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kHashedAtOnce = std::size_t{1} << 20;

Result<Manifest::File> read_whole(const fs::path& folder, const std::string& name) {
  const fs::path path = folder / name;
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  if (!file) return std::unexpected(os_error(errno, path.string(), ErrorCode::checkpoint));
  Manifest::File found{.file = name};
  Sha256 sum;
  std::vector<std::byte> buffer(kHashedAtOnce);
  for (;;) {
    auto count = file_ops::read_at(file, found.bytes, buffer, path);
    if (!count) return fail(ErrorCode::checkpoint, std::move(count).error().message);
    if (*count == 0) break;
    sum.update(std::span(buffer).first(*count));
    found.bytes += *count;
  }
  found.sha256 = sum.finish_hex();
  return found;
}

}  // namespace

Result<> add_extra_files(Manifest& manifest, const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code ignored;
    if (at->symlink_status(ignored).type() != fs::file_type::regular) continue;
    std::string name = at->path().lexically_relative(folder).string();
    if (std::ranges::find(manifest.shards, name, &Manifest::File::file) == manifest.shards.end())
      names.push_back(std::move(name));
  }
  if (error)
    return fail(ErrorCode::io, fmt::format("list {}: {}", folder.string(), error.message()));
  std::ranges::sort(names);
  manifest.files.clear();
  for (const std::string& name : names) {
    SORTIE_ASSIGN_OR_RETURN(Manifest::File file, read_whole(folder, name));
    manifest.files.push_back(std::move(file));
  }
  return {};
}

Result<> check_extra_files(const Manifest& manifest, const fs::path& folder,
                           const std::function<void(std::uint64_t bytes)>& on_bytes) {
  for (const Manifest::File& expected : manifest.files) {
    SORTIE_ASSIGN_OR_RETURN(const Manifest::File file, read_whole(folder, expected.file));
    on_bytes(file.bytes);
    if (file.sha256 != expected.sha256)
      return fail(ErrorCode::checkpoint,
                  fmt::format("{}: SHA-256 is {}, the manifest says {}; the file was changed: "
                              "restore it, and edit only exported copies",
                              (folder / expected.file).string(), file.sha256, expected.sha256));
  }
  return {};
}

}  // namespace sortie::trainer
