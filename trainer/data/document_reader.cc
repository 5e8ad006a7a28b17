#include "trainer/data/document_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>

#include "trainer/storage/mapped_file.h"

namespace sortie::trainer {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;

/// Larger files stay mapped. A chunk can hold thousands of small files, and a process has 65530
/// mappings by default (vm.max_map_count), so these are copied.
constexpr std::size_t kMostCopied = std::size_t{256} << 10;

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

}  // namespace

Result<> DocumentReader::open_next() {
  const std::filesystem::path& path = corpus_.files[next_file_++];
  path_ = path.string();
  for (const std::string_view ending : {".jsonl", ".jsonl.gz"})
    if (options_.json_key.empty() && path_.ends_with(ending))
      return fail(ErrorCode::usage,
                  fmt::format("{}: JSON lines; give --json-key and the key of their text, or "
                              "another name to take the file as text",
                              path_));
  SORTIE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path, ErrorCode::io));
  if (file.size() <= kMostCopied) {
    auto copy = std::make_shared<std::string>(text_of(file));
    stored_ = *copy;
    stored_owner_ = std::move(copy);
  } else {
    file.expect_sequential();
    auto mapped = std::make_shared<MappedFile>(std::move(file));
    stored_ = text_of(*mapped);
    stored_owner_ = std::move(mapped);
  }
  begins_ = true;
  line_ = 1;
  input_used_ = 0;
  gzip_.reset();
  carried_.clear();
  const auto bytes = std::as_bytes(std::span(stored_));
  if (!GzipReader::is_gzip(bytes)) {
    owner_ = stored_owner_;
    rest_ = stored_;
    return {};
  }
  rest_ = {};
  gzip_.emplace(bytes, path_);
  if (!options_.json_key.empty()) return {};
  auto text = std::make_shared<std::string>();
  while (!gzip_->at_end()) SORTIE_TRY(gzip_->read(std::max(text->size(), kChunk), *text));
  gzip_.reset();
  rest_ = *text;
  owner_ = std::move(text);
  return {};
}

void DocumentReader::use_input(TextChunk& chunk) {
  const std::uint64_t used = gzip_                     ? gzip_->position()
                             : rest_.empty()           ? stored_.size()
                             : owner_ == stored_owner_ ? stored_.size() - rest_.size()
                                                       : 0;
  chunk.input_bytes += used - input_used_;
  input_used_ = used;
  chunk.files += begins_ ? 1 : 0;
  begins_ = false;
}

Result<TextChunk> DocumentReader::next_lines() {
  TextChunk chunk;
  if (gzip_) {
    auto text = std::make_shared<std::string>(std::move(carried_));
    carried_.clear();
    std::size_t newline = std::string::npos;
    while (newline == std::string::npos && !gzip_->at_end()) {
      const std::size_t before = text->size();
      SORTIE_TRY(gzip_->read(kChunk, *text));
      newline = text->find_last_of('\n');
      if (newline != std::string::npos && newline < before) newline = std::string::npos;
    }
    if (newline != std::string::npos && !gzip_->at_end()) {
      carried_ = text->substr(newline + 1);
      text->resize(newline + 1);
    }
    chunk.lines = *text;
    chunk.owners.push_back(std::move(text));
  } else {
    const std::size_t newline = rest_.size() > kChunk ? rest_.find('\n', kChunk) : rest_.npos;
    chunk.lines = rest_.substr(0, newline == rest_.npos ? newline : newline + 1);
    rest_.remove_prefix(chunk.lines.size());
    chunk.owners.push_back(owner_);
  }
  // RFC 8259 lets a reader of JSON ignore a byte order mark. Only the file begins with one.
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (begins_ && chunk.lines.starts_with(kByteOrderMark))
    chunk.lines.remove_prefix(kByteOrderMark.size());
  chunk.file = path_;
  chunk.first_line = line_;
  line_ += static_cast<std::uint64_t>(std::count(chunk.lines.begin(), chunk.lines.end(), '\n'));
  use_input(chunk);
  return chunk;
}

/// Finds the end of the next document, or skips it if it is not text.
void DocumentReader::begin_document(TextChunk& chunk) {
  document_rest_ = rest_.size();
  if (options_.document_bytes > 0 && rest_.size() > options_.document_bytes)
    if (const std::size_t newline = rest_.find('\n', options_.document_bytes);
        newline != rest_.npos)
      document_rest_ = newline + 1;
  if (options_.keep_non_text) return;
  const TextKind kind = kind_of_text(rest_.substr(0, document_rest_));
  if (kind == TextKind::text) return;
  chunk.left_out.add(kind, document_rest_, path_);
  rest_.remove_prefix(document_rest_);
  document_rest_ = 0;
}

Result<> DocumentReader::add_pieces(TextChunk& chunk) {
  const std::size_t before = chunk.pieces.size();
  while (!rest_.empty() && chunk.piece_bytes < kChunk) {
    const bool begins = document_rest_ == 0;
    if (begins) begin_document(chunk);
    if (document_rest_ == 0) continue;
    std::string_view piece = rest_.substr(0, document_rest_);
    if (piece.size() > kChunk) piece = piece.substr(0, tokenizer_.find_cut(piece, kChunk));
    document_rest_ -= piece.size();
    rest_.remove_prefix(piece.size());
    chunk.pieces.push_back({piece, begins, document_rest_ == 0});
    chunk.piece_bytes += piece.size();
  }
  if (chunk.pieces.size() > before) chunk.owners.push_back(owner_);
  use_input(chunk);
  return {};
}

Result<std::optional<TextChunk>> DocumentReader::next() {
  TextChunk chunk;
  for (;;) {
    while (rest_.empty() && (!gzip_ || (gzip_->at_end() && carried_.empty()))) {
      if (next_file_ == corpus_.files.size())
        return chunk.pieces.empty() && chunk.left_out.count() == 0
                   ? std::nullopt
                   : std::optional(std::move(chunk));
      SORTIE_TRY(open_next());
    }
    if (!options_.json_key.empty()) {
      SORTIE_ASSIGN_OR_RETURN(chunk, next_lines());
      return std::optional(std::move(chunk));
    }
    SORTIE_TRY(add_pieces(chunk));
    // Small files share a chunk. Many left-out documents end it too, so that progress is reported.
    constexpr std::uint64_t kMostLeftOut = 64;
    if (chunk.piece_bytes >= kChunk || chunk.left_out.count() >= kMostLeftOut)
      return std::optional(std::move(chunk));
  }
}

}  // namespace sortie::trainer
