#include "trainer/data/token_writer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/base/atomic_file.h"
#include "common/base/check.h"
#include "trainer/data/id_range.h"

namespace sortie::trainer {
namespace {

/// Lengths are i32 in the file; a longer document becomes several sequences.
constexpr std::uint64_t kMaxSequence = std::uint64_t{1} << 30;

template <class T>
void narrow(std::span<const std::int32_t> tokens, std::vector<std::byte>& out) {
  const std::size_t begin = out.size();
  out.resize(begin + tokens.size() * sizeof(T));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto value = static_cast<T>(tokens[i]);
    SORTIE_CHECK(static_cast<std::int64_t>(value) == tokens[i], "token {}", tokens[i]);
    std::memcpy(out.data() + begin + i * sizeof(T), &value, sizeof value);
  }
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <class T>
Result<> write_value(OutputFile& file, T value) {
  return file.write(std::as_bytes(std::span(&value, 1)));
}

}  // namespace

void append_tokens(TokenType type, std::span<const std::int32_t> tokens,
                   std::vector<std::byte>& out) {
  with_token_type(type, [&]<class T>(T) { narrow<T>(tokens, out); });
}

TokenFileWriter::TokenFileWriter(std::string prefix, TokenType type, OutputFile bin, OutputFile idx)
    : prefix_(std::move(prefix)), type_(type), bin_(std::move(bin)), idx_(std::move(idx)) {}

Result<TokenFileWriter> TokenFileWriter::create(const std::string& prefix, TokenType type,
                                                bool overwrite) {
  const std::filesystem::path bin = prefix + ".bin";
  const std::filesystem::path idx = prefix + ".idx";
  std::error_code ignored;
  for (const auto& path : {bin, idx})
    if (!overwrite && std::filesystem::exists(path, ignored))
      return fail(
          ErrorCode::usage,
          fmt::format("{}: exists; choose another --output or give --overwrite", path.string()));
  if (bin.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(bin.parent_path(), error);
    if (error)
      return fail(ErrorCode::io,
                  fmt::format("create {}: {}", bin.parent_path().string(), error.message()));
  }
  SORTIE_ASSIGN_OR_RETURN(OutputFile bin_file, OutputFile::create(bin));
  SORTIE_ASSIGN_OR_RETURN(OutputFile idx_file, OutputFile::create(idx));
  return TokenFileWriter(prefix, type, std::move(bin_file), std::move(idx_file));
}

void TokenFileWriter::end_sequence() {
  lengths_.push_back(static_cast<std::int32_t>(open_tokens_));
  open_tokens_ = 0;
}

Result<> TokenFileWriter::append(std::span<const std::int32_t> tokens) {
  narrow_.clear();
  append_tokens(type_, tokens, narrow_);
  return append_raw(narrow_);
}

Result<> TokenFileWriter::append_raw(std::span<const std::byte> tokens) {
  const std::size_t size = token_bytes(type_);
  SORTIE_CHECK(tokens.size() % size == 0, "{} bytes", tokens.size());
  if (!tokens.empty()) max_id_ = std::max(max_id_, id_range(type_, tokens).max);
  while (!tokens.empty()) {
    const std::size_t count =
        std::min<std::uint64_t>(tokens.size() / size, kMaxSequence - open_tokens_);
    SORTIE_TRY(bin_.write(tokens.first(count * size)));
    tokens = tokens.subspan(count * size);
    tokens_ += count;
    open_tokens_ += count;
    if (open_tokens_ == kMaxSequence) end_sequence();
  }
  return {};
}

Result<> TokenFileWriter::end_document() {
  // A document without tokens is one empty sequence, so that it is counted.
  if (open_tokens_ > 0 || bounds_.back() == lengths_.size()) end_sequence();
  bounds_.push_back(lengths_.size());
  return {};
}

Result<> TokenFileWriter::write_index() {
  SORTIE_TRY(idx_.write(std::as_bytes(std::span(kIndexMagic.data(), kIndexMagic.size()))));
  SORTIE_TRY(write_value(idx_, kIndexVersion));
  SORTIE_TRY(write_value(idx_, static_cast<std::uint8_t>(type_)));
  SORTIE_TRY(write_value(idx_, static_cast<std::uint64_t>(lengths_.size())));
  SORTIE_TRY(write_value(idx_, static_cast<std::uint64_t>(bounds_.size())));
  SORTIE_TRY(idx_.write(bytes_of(lengths_)));
  std::uint64_t pointer = 0;
  for (const std::int32_t length : lengths_) {
    SORTIE_TRY(write_value(idx_, pointer));
    pointer += static_cast<std::uint64_t>(length) * token_bytes(type_);
  }
  return idx_.write(bytes_of(bounds_));
}

Result<TokenFileSummary> TokenFileWriter::finish() {
  SORTIE_CHECK(open_tokens_ == 0 && bounds_.back() == lengths_.size(), "a document is still open");
  SORTIE_TRY(write_index());
  SORTIE_TRY(bin_.sync());
  SORTIE_TRY(idx_.sync());
  // An old .idx with a new .bin would be a wrong pair. So the old .idx is removed first, and the
  // new one is published last.
  const std::filesystem::path idx = prefix_ + ".idx";
  if (::unlink(idx.c_str()) != 0 && errno != ENOENT)
    return std::unexpected(os_error(errno, "remove " + idx.string()));
  SORTIE_TRY(bin_.publish());
  SORTIE_TRY(idx_.publish());
  SORTIE_TRY(sync_path(idx.has_parent_path() ? idx.parent_path() : "."));
  return TokenFileSummary{documents(), tokens_, max_id_, bin_.sha256(), idx_.sha256()};
}

}  // namespace sortie::trainer
