#include "trainer/data/chunk_encoder.h"

#include <fmt/core.h>

#include <algorithm>

#include "trainer/data/json_line.h"
#include "trainer/data/token_writer.h"

namespace sortie::trainer {

Result<> ChunkEncoder::add_piece(const TextPiece& piece, std::vector<std::int32_t>& ids,
                                 EncodedChunk& out) const {
  const std::size_t before = out.tokens.size();
  if (as_is_) {
    const auto bytes = std::as_bytes(std::span(piece.text));
    out.tokens.insert(out.tokens.end(), bytes.begin(), bytes.end());
  } else {
    ids.clear();
    const SpecialTokens& special = tokenizer_.special_tokens();
    if (add_special_ && piece.begins_document) ids = special.before;
    SORTIE_TRY(tokenizer_.encode(piece.text, ids));
    if (add_special_ && piece.ends_document)
      ids.insert(ids.end(), special.after.begin(), special.after.end());
    if (append_eod_ && piece.ends_document) ids.push_back(*tokenizer_.eod_id());
    append_tokens(type_, ids, out.tokens);
  }
  out.pieces.push_back({out.tokens.size() - before, piece.text.size(), piece.ends_document});
  return {};
}

Result<> ChunkEncoder::add_lines(const TextChunk& chunk, std::vector<std::int32_t>& ids,
                                 EncodedChunk& out) const {
  std::string buffer;
  std::string_view rest = chunk.lines;
  for (std::uint64_t number = chunk.first_line; !rest.empty(); ++number) {
    const std::size_t newline = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, newline);
    rest.remove_prefix(std::min(newline + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    auto text = json_line_string(line, documents_.json_key, buffer);
    if (!text)
      return std::unexpected(
          with_context(std::move(text).error(), fmt::format("{}:{}", chunk.file, number)));
    const TextKind kind = kind_of_text(*text, documents_.keep_non_text);
    if (text->empty())
      ++out.empty_documents;
    else if (kind != TextKind::text)
      out.left_out.add(kind, text->size(), fmt::format("{}:{}", chunk.file, number));
    else if (auto added = add_piece({*text}, ids, out); !added)
      return std::unexpected(
          with_context(std::move(added).error(), fmt::format("{}:{}", chunk.file, number)));
  }
  return {};
}

Result<EncodedChunk> ChunkEncoder::encode(const TextChunk& chunk) const {
  EncodedChunk out;
  std::vector<std::int32_t> ids;
  for (const TextPiece& piece : chunk.pieces) SORTIE_TRY(add_piece(piece, ids, out));
  SORTIE_TRY(add_lines(chunk, ids, out));
  return out;
}

}  // namespace sortie::trainer
