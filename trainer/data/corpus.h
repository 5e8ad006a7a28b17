// Lists the input files of a token file in a defined order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace sortie::trainer {

struct CorpusOptions {
  std::vector<std::filesystem::path> inputs{};  // files, folders, patterns like a/*.txt
  std::vector<std::string> include{};  // patterns for names of files in folders; empty = all
};

struct Corpus {
  std::vector<std::filesystem::path> files;
  std::uint64_t bytes = 0;
  std::uint64_t skipped_empty = 0;
  std::uint64_t skipped_pattern = 0;
  std::uint64_t skipped_hidden = 0;    // names that start with a dot, within folders
  std::uint64_t skipped_links = 0;     // symbolic links and special files, within folders
  std::uint64_t skipped_repeated = 0;  // files that are named more than once
};

/// Lists the files of the inputs, in the order of the inputs. A folder contributes its files at any
/// depth, in bytewise order of their paths, so that the result does not depend on the file system
/// or the locale. ErrorCode::data if no file remains.
Result<Corpus> list_corpus(const CorpusOptions& options);

}  // namespace sortie::trainer
