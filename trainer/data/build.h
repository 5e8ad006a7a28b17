// Text files to token files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "trainer/data/corpus.h"
#include "trainer/data/document_reader.h"
#include "trainer/data/token_writer.h"
#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {

struct BuildProgress {
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;  // of documents
  std::uint64_t tokens = 0;
  std::uint64_t empty_documents = 0;  // JSON lines without text, which are left out
  LeftOutText left_out{};             // documents that are no text
  std::uint64_t input_bytes = 0;      // of the files, as they are stored
  std::uint64_t total_bytes = 0;      // of all files
};

struct BuildOptions {
  CorpusOptions corpus{};
  std::string output{};  // PREFIX
  /// Shares of documents for training and validation; absent = one PREFIX.{bin,idx}.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> split{};
  bool append_eod = false;
  bool add_special_tokens = false;  // of the tokenizer, around every document
  bool overwrite = false;
  DocumentOptions documents{};
  int threads = 1;  // that tokenize; the result does not depend on them
  std::function<void(const BuildProgress&)> progress{};  // called every megabyte or so
  std::function<bool()> interrupted{};                   // asked then, and every 100 ms
};

struct BuildPart {
  std::string prefix;
  TokenFileSummary summary;
};

struct BuildResult {
  std::vector<BuildPart> parts;
  TokenType type = TokenType::u8;
  Corpus corpus;
  std::uint64_t text_bytes = 0;
  std::uint64_t empty_documents = 0;  // JSON lines without text, which are left out
  LeftOutText left_out{};             // documents that are no text
};

/// Documents that are no text are left out, unless DocumentOptions keeps them. Document number i of
/// the others (from 0, in the order of list_corpus) belongs to validation when
/// floor((i + 1) * v / (t + v)) > floor(i * v / (t + v)): with 99,1 every 100th. The same inputs
/// give the same bytes. PREFIX.json (see manifest in README.md) is written last.
Result<BuildResult> build_token_files(const BuildOptions& options, const Tokenizer& tokenizer);

/// "99,1" to its two shares.
Result<std::pair<std::uint64_t, std::uint64_t>> parse_split(std::string_view text);

}  // namespace sortie::trainer
