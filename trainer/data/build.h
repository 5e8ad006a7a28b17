// Builds token files (PREFIX.bin, PREFIX.idx and the manifest PREFIX.json) from text files.
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
  std::uint64_t bytes = 0;  // text bytes of documents
  std::uint64_t tokens = 0;
  std::uint64_t empty_documents = 0;  // JSON lines whose text is empty; left out
  LeftOutText left_out{};             // documents that are not text
  std::uint64_t input_bytes = 0;      // consumed bytes of input files, as stored
  std::uint64_t total_bytes = 0;      // stored bytes of all input files
};

struct BuildOptions {
  CorpusOptions corpus{};
  std::string output{};  // PREFIX
  /// Shares of documents for training and validation. nullopt: one PREFIX.{bin,idx} for all.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> split{};
  bool append_eod = false;
  bool add_special_tokens = false;  // put the tokenizer's special tokens around every document
  bool overwrite = false;
  DocumentOptions documents{};
  int threads = 1;  // tokenizing threads; the result does not depend on them
  std::function<void(const BuildProgress&)> progress{};  // called after each chunk (about 1 MB)
  std::function<bool()> interrupted{};                   // polled after each chunk and every 100 ms
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
  std::uint64_t empty_documents = 0;  // JSON lines whose text is empty; left out
  LeftOutText left_out{};             // documents that are not text
};

/// Builds the token files. Leaves out empty JSON documents, and documents that are not text unless
/// DocumentOptions keeps them. The other documents are numbered from 0 in the order of list_corpus.
/// With a split t,v, document i belongs to validation if
/// floor((i + 1) * v / (t + v)) > floor(i * v / (t + v)); with 99,1 every 100th does.
/// Equal inputs give byte-identical files. PREFIX.json (see README.md) is written last; an old one
/// is removed before the first file is replaced.
/// ErrorCode::usage if the output is no prefix (a folder, or a name that ends in .bin or .idx), or
/// if one of the files exists, unless `overwrite`; ErrorCode::data if one is an
/// input.
Result<BuildResult> build_token_files(const BuildOptions& options, const Tokenizer& tokenizer);

/// Parses two shares such as "99,1". ErrorCode::usage unless both are whole numbers from 1 to
/// 1000000.
Result<std::pair<std::uint64_t, std::uint64_t>> parse_split(std::string_view text);

}  // namespace sortie::trainer
