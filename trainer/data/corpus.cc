#include "trainer/data/corpus.h"

#include <fmt/core.h>
#include <fnmatch.h>
#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

namespace sortie::trainer {
namespace fs = std::filesystem;
namespace {

class Lister {
 public:
  explicit Lister(const CorpusOptions& options) : options_(options) {}

  Result<> add_input(const fs::path& input) {
    struct stat info {};
    if (::stat(input.c_str(), &info) != 0 && errno == ENOENT &&
        input.native().find_first_of("*?[") != std::string::npos)
      return add_pattern(input);
    if (::stat(input.c_str(), &info) != 0)
      return std::unexpected(os_error(errno, "input " + input.string(),
                                      errno == ENOENT ? ErrorCode::not_found : ErrorCode::io));
    if (S_ISDIR(info.st_mode)) return add_folder(input);
    if (!S_ISREG(info.st_mode))
      return fail(ErrorCode::data,
                  fmt::format("input {}: neither a file nor a folder", input.string()));
    add_file(input, info);
    return {};
  }

  Corpus take() { return std::move(corpus_); }

 private:
  /// Adds the files that a shell would substitute for the pattern. Patterns are for lists that are
  /// too long for a command line.
  Result<> add_pattern(const fs::path& pattern) {
    glob_t found{};
    const int code = ::glob(pattern.c_str(), GLOB_ERR, nullptr, &found);
    const int why = errno;
    const std::vector<fs::path> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    // GLOB_ERR stops also at a folder of the pattern that does not exist.
    if (code == GLOB_NOMATCH || (code == GLOB_ABORTED && (why == ENOENT || why == ENOTDIR)))
      return fail(ErrorCode::not_found, fmt::format("input {}: matches nothing", pattern.string()));
    if (code != 0)
      return fail(ErrorCode::io,
                  fmt::format("input {}: a folder can not be read", pattern.string()));
    for (const fs::path& path : paths) SORTIE_TRY(add_input(path));
    return {};
  }

  Result<> add_folder(const fs::path& folder) {
    std::error_code error;
    std::vector<fs::path> found;
    for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
         at.increment(error)) {
      const std::string name = at->path().filename().string();
      std::error_code ignored;
      const fs::file_status status = at->symlink_status(ignored);
      if (name.starts_with('.')) {
        ++corpus_.skipped_hidden;
        if (status.type() == fs::file_type::directory) at.disable_recursion_pending();
      } else if (status.type() == fs::file_type::directory) {
        continue;
      } else if (status.type() != fs::file_type::regular) {
        ++corpus_.skipped_links;
      } else if (!included(name)) {
        ++corpus_.skipped_pattern;
      } else {
        found.push_back(at->path());
      }
    }
    if (error)
      return fail(ErrorCode::io, fmt::format("list {}: {}", folder.string(), error.message()));
    std::sort(found.begin(), found.end(),
              [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
    for (const fs::path& path : found) {
      struct stat info {};
      if (::stat(path.c_str(), &info) != 0)
        return std::unexpected(os_error(errno, "input " + path.string()));
      add_file(path, info);
    }
    return {};
  }

  void add_file(const fs::path& path, const struct stat& info) {
    if (!seen_.emplace(info.st_dev, info.st_ino).second) {
      ++corpus_.skipped_repeated;
    } else if (info.st_size == 0) {
      ++corpus_.skipped_empty;
    } else {
      corpus_.bytes += static_cast<std::uint64_t>(info.st_size);
      corpus_.files.push_back(path);
    }
  }

  bool included(const std::string& name) const {
    return options_.include.empty() ||
           std::any_of(options_.include.begin(), options_.include.end(),
                       [&](const std::string& pattern) {
                         return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
                       });
  }

  const CorpusOptions& options_;
  Corpus corpus_;
  std::set<std::pair<dev_t, ino_t>> seen_;
};

}  // namespace

Result<Corpus> list_corpus(const CorpusOptions& options) {
  Lister lister(options);
  for (const fs::path& input : options.inputs) SORTIE_TRY(lister.add_input(input));
  Corpus corpus = lister.take();
  if (corpus.files.empty())
    return fail(
        ErrorCode::data,
        fmt::format("no text in the inputs ({} empty, {} not matching --include, {} hidden, "
                    "{} links left out); name files or folders with text",
                    corpus.skipped_empty, corpus.skipped_pattern, corpus.skipped_hidden,
                    corpus.skipped_links));
  return corpus;
}

}  // namespace sortie::trainer
