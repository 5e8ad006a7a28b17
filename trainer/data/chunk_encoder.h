// ChunkEncoder: tokenizes a chunk of documents into the byte format of a .bin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "trainer/data/document_reader.h"
#include "trainer/data/index_format.h"
#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {

/// A document or part of one. The tokens of all pieces are contiguous in EncodedChunk::tokens.
struct EncodedPiece {
  std::size_t token_bytes = 0;
  std::size_t text_bytes = 0;
  bool ends_document = true;
};

struct EncodedChunk {
  std::vector<std::byte> tokens{};
  std::vector<EncodedPiece> pieces{};
  std::uint64_t empty_documents = 0;  // JSON lines whose text is empty; left out
  LeftOutText left_out{};             // JSON lines that are not text
};

/// Immutable and thread-safe.
class ChunkEncoder {
 public:
  /// `append_eod` requires a tokenizer with an end-of-document id. `add_special` puts the
  /// tokenizer's special tokens around every document. The tokenizer must outlive the encoder.
  ChunkEncoder(const Tokenizer& tokenizer, TokenType type, bool append_eod, bool add_special,
               DocumentOptions documents)
      : tokenizer_(tokenizer),
        type_(type),
        append_eod_(append_eod),
        add_special_(add_special),
        documents_(std::move(documents)),
        as_is_(tokenizer.name() == "byte" && type == TokenType::u8) {}

  /// An error in a JSON line names the file and the line.
  Result<EncodedChunk> encode(const TextChunk& chunk) const;

 private:
  Result<> add_piece(const TextPiece& piece, std::vector<std::int32_t>& ids,
                     EncodedChunk& out) const;
  Result<> add_lines(const TextChunk& chunk, std::vector<std::int32_t>& ids,
                     EncodedChunk& out) const;

  const Tokenizer& tokenizer_;
  TokenType type_;
  bool append_eod_;
  bool add_special_;
  DocumentOptions documents_;
  bool as_is_;  // the text bytes are the tokens; nothing is added
};

}  // namespace sortie::trainer
