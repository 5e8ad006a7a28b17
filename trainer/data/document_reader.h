// DocumentReader: splits input files into chunks of documents, in order, without tokenizing them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "trainer/data/corpus.h"
#include "trainer/data/gzip_reader.h"
#include "trainer/tokenizer/text_check.h"
#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {

struct DocumentOptions {
  /// If not empty: every line of every file is a JSON object whose string at this key is a
  /// document. If empty: files are plain text.
  std::string json_key{};
  /// Text files are split after the first newline beyond this many bytes; 0 = one document per
  /// file.
  std::uint64_t document_bytes = 0;
  /// Keep documents that are not text (text_check.h).
  bool keep_non_text = false;
};

/// A document or part of one.
struct TextPiece {
  std::string_view text;
  bool begins_document = true;
  bool ends_document = true;
};

/// About 1 MB of text: whole JSON lines or pieces of documents.
struct TextChunk {
  std::string file{};            // that `lines` are from
  std::string_view lines{};      // JSON lines; empty for plain text
  std::uint64_t first_line = 1;  // number of the first line within the file
  std::vector<TextPiece> pieces{};
  std::size_t piece_bytes = 0;
  std::uint64_t input_bytes = 0;  // bytes of input files that this chunk consumed
  std::uint64_t files = 0;        // that begin in this chunk
  LeftOutText left_out{};         // documents left out while filling this chunk
  std::vector<std::shared_ptr<const void>> owners{};  // keep the memory of the views alive
};

/// Not thread-safe. Reads a small file when it is reached and maps a larger one. Detects gzip by
/// its magic number. Decompresses a gzip file of plain text as a whole in memory; streams one of
/// JSON lines.
class DocumentReader {
 public:
  /// `corpus` and `tokenizer` must outlive the reader. Tokenizer::find_cut decides where a long
  /// text can be cut.
  DocumentReader(const Corpus& corpus, DocumentOptions options, const Tokenizer& tokenizer)
      : corpus_(corpus), options_(std::move(options)), tokenizer_(tokenizer) {}

  /// Returns nullopt after the last chunk.
  Result<std::optional<TextChunk>> next();

 private:
  Result<> open_next();
  Result<TextChunk> next_lines();
  Result<> add_pieces(TextChunk& chunk);
  void begin_document(TextChunk& chunk);
  void use_input(TextChunk& chunk);

  const Corpus& corpus_;
  DocumentOptions options_;
  const Tokenizer& tokenizer_;
  std::size_t next_file_ = 0;

  // State of the open file.
  std::string path_;
  std::shared_ptr<const void> owner_;  // owns the memory of rest_
  std::string_view rest_;
  std::size_t document_rest_ = 0;             // bytes of rest_ that belong to the current document
  std::shared_ptr<const void> stored_owner_;  // owns the memory of stored_
  std::string_view stored_;                   // the file's bytes, compressed or not
  std::optional<GzipReader> gzip_;
  std::string carried_;  // gzip of JSON lines: the beginning of an incomplete line
  std::uint64_t line_ = 1;
  std::uint64_t input_used_ = 0;
  bool begins_ = false;
};

}  // namespace sortie::trainer
