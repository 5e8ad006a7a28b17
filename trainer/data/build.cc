#include "trainer/data/build.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <map>

#include "common/base/atomic_file.h"
#include "trainer/data/build_manifest.h"
#include "trainer/data/chunk_encoder.h"
#include "trainer/data/ordered_pool.h"

namespace sortie::trainer {
namespace {

/// Makes the path in the tokenizer's name absolute, so that the name is valid in any folder.
std::string with_absolute_path(const std::string& tokenizer) {
  const std::size_t colon = tokenizer.find(':');
  if (colon == tokenizer.npos) return tokenizer;
  std::error_code error;
  const auto path = std::filesystem::absolute(tokenizer.substr(colon + 1), error);
  return error ? tokenizer : tokenizer.substr(0, colon + 1) + path.lexically_normal().string();
}

class Builder {
 public:
  Builder(const BuildOptions& options, const Tokenizer& tokenizer)
      : options_(options), tokenizer_(tokenizer) {}

  Result<BuildResult> run() {
    if (options_.append_eod && !tokenizer_.eod_id())
      return fail(ErrorCode::usage,
                  fmt::format("--append-eod: {} has no end-of-document id", tokenizer_.name()));
    SORTIE_TRY(check_special_tokens());
    SORTIE_TRY(check_output_name());
    SORTIE_ASSIGN_OR_RETURN(result_.corpus, list_corpus(options_.corpus));
    progress_.total_bytes = result_.corpus.bytes;
    // Byte tokens without end-of-document ids fit in u8.
    result_.type = tokenizer_.name() == "byte" && !options_.append_eod
                       ? TokenType::u8
                       : token_type_for(tokenizer_.vocab_size());
    result_.parts = options_.split ? std::vector<BuildPart>{{options_.output + "-train", {}},
                                                            {options_.output + "-validation", {}}}
                                   : std::vector<BuildPart>{{options_.output, {}}};
    SORTIE_TRY(check_existing_files());
    SORTIE_TRY(open_writers());
    SORTIE_TRY(add_documents());
    SORTIE_TRY(check_parts());
    SORTIE_TRY(remove_old_manifest());
    for (TokenFileWriter& writer : writers_) {
      SORTIE_ASSIGN_OR_RETURN(TokenFileSummary summary, writer.finish());
      result_.parts[static_cast<std::size_t>(&writer - writers_.data())].summary =
          std::move(summary);
    }
    result_.text_bytes = progress_.bytes;
    result_.empty_documents = progress_.empty_documents;
    result_.left_out = progress_.left_out;
    SORTIE_TRY(write_file_atomic(manifest_path(), to_json(manifest())));
    return std::move(result_);
  }

 private:
  using Pool = OrderedPool<TextChunk, EncodedChunk>;

  std::string manifest_path() const { return options_.output + ".json"; }

  /// Refuses the name of a token file, which no config accepts, and the name of a folder: the files
  /// in it would be hidden ones, .bin, .idx and .json.
  Result<> check_output_name() const {
    const std::filesystem::path name = std::filesystem::path(options_.output).filename();
    if (options_.output.ends_with(".bin") || options_.output.ends_with(".idx"))
      return fail(
          ErrorCode::usage,
          fmt::format("--output {}: a prefix is expected, to which .bin and .idx are "
                      "appended; write {}",
                      options_.output, options_.output.substr(0, options_.output.size() - 4)));
    if (!name.empty() && name != "." && name != "..") return {};
    return fail(
        ErrorCode::usage,
        fmt::format("--output {}: a folder, but it is the beginning of the files' names; "
                    "add a name, as in {}",
                    options_.output, (std::filesystem::path(options_.output) / "data").string()));
  }

  Result<> check_special_tokens() const {
    if (!options_.add_special_tokens) return {};
    const SpecialTokens& special = tokenizer_.special_tokens();
    if (special.before.empty() && special.after.empty())
      return fail(ErrorCode::usage,
                  fmt::format("--add-special-tokens: {} puts none around a text; leave it out",
                              tokenizer_.name()));
    if (options_.append_eod && !special.after.empty() &&
        special.after.back() == *tokenizer_.eod_id())
      return fail(
          ErrorCode::usage,
          fmt::format("--append-eod: with --add-special-tokens {} ends a document with that "
                      "id already; leave one of them out",
                      tokenizer_.name()));
    return {};
  }

  /// Refuses a manifest that exists, unless --overwrite, and output files that are inputs, always.
  Result<> check_existing_files() const {
    std::vector<std::string> outputs = {manifest_path()};
    for (const BuildPart& part : result_.parts)
      outputs.insert(outputs.end(), {part.prefix + ".bin", part.prefix + ".idx"});
    std::map<std::pair<dev_t, ino_t>, std::string> existing;
    struct stat info {};
    for (const std::string& path : outputs)
      if (::stat(path.c_str(), &info) == 0)
        existing.emplace(std::pair(info.st_dev, info.st_ino), path);
    if (existing.empty()) return {};
    for (const std::filesystem::path& file : result_.corpus.files) {
      if (::stat(file.c_str(), &info) != 0) continue;  // opening it says why
      if (const auto found = existing.find({info.st_dev, info.st_ino}); found != existing.end())
        return fail(ErrorCode::data, fmt::format("{}: is the input {}, which the build would "
                                                 "replace; choose another --output",
                                                 found->second, file.string()));
    }
    std::error_code ignored;
    if (!options_.overwrite && std::filesystem::exists(manifest_path(), ignored))
      return fail(
          ErrorCode::usage,
          fmt::format("{}: exists; choose another --output or give --overwrite", manifest_path()));
    return {};
  }

  Result<> open_writers() {
    writers_.reserve(result_.parts.size());
    for (const BuildPart& part : result_.parts) {
      SORTIE_ASSIGN_OR_RETURN(
          TokenFileWriter writer,
          TokenFileWriter::create(part.prefix, result_.type, options_.overwrite));
      writers_.push_back(std::move(writer));
    }
    return {};
  }

  /// Other threads read and tokenize. This thread writes and polls for an interruption.
  Result<> add_documents() {
    DocumentReader reader(result_.corpus, options_.documents, tokenizer_);
    const ChunkEncoder encoder(tokenizer_, result_.type, options_.append_eod,
                               options_.add_special_tokens, options_.documents);
    Pool pool([&reader] { return reader.next(); },
              [&encoder](const TextChunk& chunk) { return encoder.encode(chunk); },
              options_.threads);
    for (;;) {
      constexpr std::chrono::milliseconds kPatience{100};
      const Pool::State state = pool.wait(kPatience);
      SORTIE_TRY(check_interruption());
      if (state == Pool::State::ended) return {};
      if (state == Pool::State::pending) continue;
      SORTIE_ASSIGN_OR_RETURN(const Pool::Finished chunk, pool.next());
      SORTIE_TRY(add_chunk(chunk.item, chunk.output));
    }
  }

  Result<> check_interruption() const {
    if (!options_.interrupted || !options_.interrupted()) return {};
    return fail(ErrorCode::interrupted, "data build: interrupted; nothing was written");
  }

  Result<> add_chunk(const TextChunk& source, const EncodedChunk& chunk) {
    progress_.files += source.files;
    progress_.input_bytes += source.input_bytes;
    progress_.empty_documents += chunk.empty_documents;
    progress_.left_out.add(source.left_out);
    progress_.left_out.add(chunk.left_out);
    std::span<const std::byte> tokens = chunk.tokens;
    for (const EncodedPiece& piece : chunk.pieces) {
      TokenFileWriter& writer = writers_[part_of(num_documents_)];
      SORTIE_TRY(writer.append_raw(tokens.first(piece.token_bytes)));
      tokens = tokens.subspan(piece.token_bytes);
      progress_.tokens += piece.token_bytes / token_bytes(result_.type);
      progress_.bytes += piece.text_bytes;
      if (!piece.ends_document) continue;
      SORTIE_TRY(writer.end_document());
      ++num_documents_;
    }
    if (options_.progress) options_.progress(progress_);
    return {};
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
      if (!options_.split)
        return fail(ErrorCode::data, fmt::format("{}: would be empty: no input has text{}",
                                                 result_.parts[i].prefix, left_out_text()));
      return fail(
          ErrorCode::data,
          fmt::format("{}: would be empty: {} documents are too few for --split {},{}{}; give "
                      "more files, --document-bytes to cut them into more documents, or "
                      "another split",
                      result_.parts[i].prefix, num_documents_, options_.split->first,
                      options_.split->second, left_out_text()));
    }
    return {};
  }

  /// If the build fails later, the old manifest must not describe the new files.
  Result<> remove_old_manifest() const {
    const std::filesystem::path path = manifest_path();
    if (::unlink(path.c_str()) == 0)
      return sync_path(path.has_parent_path() ? path.parent_path() : ".");
    if (errno == ENOENT) return {};
    return std::unexpected(os_error(errno, "remove " + path.string()));
  }

  std::string left_out_text() const {
    if (progress_.left_out.count() == 0) return {};
    return fmt::format("; left out: {}; --keep-non-text takes them all the same",
                       progress_.left_out.summary("document"));
  }

  BuildManifest manifest() const {
    BuildManifest manifest;
    manifest.tokenizer = with_absolute_path(tokenizer_.name());
    manifest.tokenizer_sha256 = tokenizer_.model_hash();
    manifest.vocabulary_sha256 = vocabulary_hash(tokenizer_);
    manifest.vocab_size = tokenizer_.vocab_size();
    manifest.eod_id = tokenizer_.eod_id();
    manifest.append_eod = options_.append_eod;
    manifest.add_special_tokens = options_.add_special_tokens;
    manifest.token_type = token_type_name(result_.type);
    manifest.text_bytes = progress_.bytes;
    manifest.files = progress_.files;
    manifest.left_out_documents = progress_.left_out.count();
    manifest.left_out_bytes = progress_.left_out.bytes;
    for (const BuildPart& part : result_.parts)
      manifest.parts.push_back({std::filesystem::path(part.prefix).filename().string(),
                                part.summary.documents, part.summary.tokens,
                                part.summary.bin_sha256, part.summary.idx_sha256,
                                part.summary.max_id});
    return manifest;
  }

  const BuildOptions& options_;
  const Tokenizer& tokenizer_;
  BuildResult result_;
  BuildProgress progress_;
  std::vector<TokenFileWriter> writers_;
  std::uint64_t num_documents_ = 0;
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
