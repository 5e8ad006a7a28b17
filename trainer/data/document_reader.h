// DocumentReader: input files to chunks of documents, in order, without tokenizing them.
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
#include "trainer/storage/mapped_file.h"
#include "trainer/tokenizer/text_check.h"
#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {

struct DocumentOptions {
  /// Every line of every file is a JSON object, its string at this key a document; empty = text.
  std::string json_key{};
  /// Text files are cut at the first newline after this many bytes; 0 = one document per file.
  std::uint64_t document_bytes = 0;
  /// Documents that are no text (text_check.h) are documents too.
  bool keep_non_text = false;
};

/// Part of a document, or all of it.
struct TextPiece {
  std::string_view text;
  bool begins_document = true;
  bool ends_document = true;
};

/// About a megabyte of text: whole lines of JSON, or pieces of documents.
struct TextChunk {
  std::string file{};            // that the lines are from
  std::string_view lines{};      // JSON lines, or empty
  std::uint64_t first_line = 1;  // of the lines, in the file
  std::vector<TextPiece> pieces{};
  std::size_t piece_bytes = 0;
  std::uint64_t input_bytes = 0;                      // of files that this chunk has used up
  std::uint64_t files = 0;                            // that begin in it
  LeftOutText left_out{};                             // of the documents that were reached
  std::vector<std::shared_ptr<const void>> owners{};  // of the memory that the views look at
};

/// Not thread-safe. A file is mapped when its turn comes; gzip is found by its magic number. A gzip
/// file of text, not of JSON lines, is unpacked in memory as a whole.
class DocumentReader {
 public:
  /// Corpus and tokenizer (which says where a long text can be cut) must outlive the reader.
  DocumentReader(const Corpus& corpus, DocumentOptions options, const Tokenizer& tokenizer)
      : corpus_(corpus), options_(std::move(options)), tokenizer_(tokenizer) {}

  /// Absent after the last.
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

  // The open file.
  std::string path_;
  std::shared_ptr<const void> owner_;  // of rest_
  std::string_view rest_;
  std::size_t document_rest_ = 0;  // bytes of rest_ that belong to the document that is open
  std::shared_ptr<MappedFile> mapped_;
  std::optional<GzipReader> gzip_;
  std::string carried_;  // of the gzip file: the beginning of a line
  std::uint64_t line_ = 1;
  std::uint64_t input_used_ = 0;
  bool begins_ = false;
};

}  // namespace sortie::trainer
