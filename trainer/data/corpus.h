// The input files of a token file: which, and in which order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace sortie::trainer {

struct CorpusOptions {
  std::vector<std::filesystem::path> inputs{};  // files, folders, patterns like a/*.txt
  std::vector<std::string> include{};           // patterns for file names in folders; empty = all
};

struct Corpus {
  std::vector<std::filesystem::path> files;
  std::uint64_t bytes = 0;
  std::uint64_t skipped_empty = 0;
  std::uint64_t skipped_pattern = 0;
  std::uint64_t skipped_hidden = 0;    // names that start with a dot, within folders
  std::uint64_t skipped_links = 0;     // symbolic links and special files, within folders
  std::uint64_t skipped_repeated = 0;  // the same file named twice
};

/// Inputs in the order given; a folder gives its files, at any depth, by bytewise order of their
/// path below it, so that the result does not depend on the file system or the locale.
Result<Corpus> list_corpus(const CorpusOptions& options);

}  // namespace sortie::trainer
