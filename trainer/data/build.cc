#include "trainer/data/build.h"

#include <fmt/core.h>

#include <charconv>

#include "common/base/atomic_file.h"
#include "trainer/data/build_manifest.h"
#include "trainer/storage/mapped_file.h"

namespace sortie::trainer {
namespace {

/// Takes the next document off `text`.
std::string_view cut_document(std::string_view& text, std::uint64_t document_bytes) {
  std::size_t length = text.size();
  if (document_bytes > 0 && text.size() > document_bytes) {
    const std::size_t newline = text.find('\n', document_bytes);
    if (newline != std::string_view::npos) length = newline + 1;
  }
  const std::string_view document = text.substr(0, length);
  text.remove_prefix(length);
  return document;
}

class Builder {
 public:
  Builder(const BuildOptions& options, const Tokenizer& tokenizer)
      : options_(options), tokenizer_(tokenizer), bytes_only_(tokenizer.name() == "byte") {}

  Result<BuildResult> run() {
    if (options_.append_eod && !tokenizer_.eod_id())
      return fail(ErrorCode::usage,
                  fmt::format("--append-eod: {} has no end-of-document id", tokenizer_.name()));
    SORTIE_ASSIGN_OR_RETURN(result_.corpus, list_corpus(options_.corpus));
    progress_.total_bytes = result_.corpus.bytes;
    // Bytes without end marks fit one byte each.
    result_.type =
        token_type_for(bytes_only_ && !options_.append_eod ? 256 : tokenizer_.vocab_size());
    SORTIE_TRY(open_writers());
    for (const auto& path : result_.corpus.files) SORTIE_TRY(add_file(path));
    SORTIE_TRY(check_parts());
    for (TokenFileWriter& writer : writers_) {
      SORTIE_ASSIGN_OR_RETURN(TokenFileSummary summary, writer.finish());
      result_.parts[static_cast<std::size_t>(&writer - writers_.data())].summary =
          std::move(summary);
    }
    SORTIE_TRY(write_file_atomic(options_.output + ".json", to_json(manifest())));
    return std::move(result_);
  }

 private:
  Result<> open_writers() {
    if (options_.split) {
      result_.parts = {{options_.output + "-train", {}}, {options_.output + "-validation", {}}};
    } else {
      result_.parts = {{options_.output, {}}};
    }
    writers_.reserve(result_.parts.size());
    for (const BuildPart& part : result_.parts) {
      SORTIE_ASSIGN_OR_RETURN(
          TokenFileWriter writer,
          TokenFileWriter::create(part.prefix, result_.type, options_.overwrite));
      writers_.push_back(std::move(writer));
    }
    return {};
  }

  Result<> add_file(const std::filesystem::path& path) {
    SORTIE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path, ErrorCode::io));
    file.expect_sequential();
    std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
    ++progress_.files;
    while (!text.empty()) {
      if (options_.interrupted && options_.interrupted())
        return fail(ErrorCode::interrupted, "data build: interrupted; nothing was written");
      const std::string_view document = cut_document(text, options_.document_bytes);
      if (auto added = add_document(document); !added)
        return std::unexpected(with_context(std::move(added).error(), path.string()));
      progress_.bytes += document.size();
      if (options_.progress) options_.progress(progress_);
    }
    return {};
  }

  Result<> add_document(std::string_view text) {
    TokenFileWriter& writer = writers_[part_of(num_documents_++)];
    const std::uint64_t before = writer.tokens();
    ids_.clear();
    if (bytes_only_) {
      SORTIE_TRY(writer.append_bytes(text));
    } else {
      SORTIE_TRY(tokenizer_.encode(text, ids_));
    }
    if (options_.append_eod) ids_.push_back(*tokenizer_.eod_id());
    SORTIE_TRY(writer.append(ids_));
    progress_.tokens += writer.tokens() - before;
    return writer.end_document();
  }

  std::size_t part_of(std::uint64_t document) const {
    if (!options_.split) return 0;
    const auto [train, validation] = *options_.split;
    const std::uint64_t whole = train + validation;
    return (document + 1) * validation / whole > document * validation / whole ? 1 : 0;
  }

  Result<> check_parts() const {
    for (std::size_t i = 0; i < writers_.size(); ++i) {
      if (writers_[i].documents() > 0) continue;
      return fail(
          ErrorCode::data,
          fmt::format("{}: would be empty: {} documents are too few for --split {},{}; give "
                      "more files, --document-bytes to cut them into more documents, or "
                      "another split",
                      result_.parts[i].prefix, num_documents_, options_.split->first,
                      options_.split->second));
    }
    return {};
  }

  BuildManifest manifest() const {
    BuildManifest manifest;
    manifest.tokenizer = tokenizer_.name();
    manifest.tokenizer_sha256 = tokenizer_.model_hash();
    manifest.vocab_size = tokenizer_.vocab_size();
    manifest.eod_id = tokenizer_.eod_id();
    manifest.append_eod = options_.append_eod;
    manifest.token_type = token_type_name(result_.type);
    manifest.text_bytes = progress_.bytes;
    manifest.files = progress_.files;
    for (const BuildPart& part : result_.parts)
      manifest.parts.push_back({std::filesystem::path(part.prefix).filename().string(),
                                part.summary.documents, part.summary.tokens,
                                part.summary.bin_sha256, part.summary.idx_sha256});
    return manifest;
  }

  const BuildOptions& options_;
  const Tokenizer& tokenizer_;
  const bool bytes_only_;
  BuildResult result_;
  BuildProgress progress_;
  std::vector<TokenFileWriter> writers_;
  std::uint64_t num_documents_ = 0;
  std::vector<std::int32_t> ids_;
};

}  // namespace

Result<BuildResult> build_token_files(const BuildOptions& options, const Tokenizer& tokenizer) {
  return Builder(options, tokenizer).run();
}

Result<std::pair<std::uint64_t, std::uint64_t>> parse_split(std::string_view text) {
  constexpr std::uint64_t kMaxShare = 1'000'000;  // keeps document * share far from overflow
  std::uint64_t train = 0;
  std::uint64_t validation = 0;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, train);
  if (first.ec == std::errc{} && first.ptr != end && *first.ptr == ',') {
    const auto second = std::from_chars(first.ptr + 1, end, validation);
    if (second.ec == std::errc{} && second.ptr == end && train > 0 && validation > 0 &&
        train <= kMaxShare && validation <= kMaxShare)
      return std::pair(train, validation);
  }
  return fail(
      ErrorCode::usage,
      fmt::format("--split {}: want two whole shares from 1 to {}, as in 99,1", text, kMaxShare));
}

}  // namespace sortie::trainer
