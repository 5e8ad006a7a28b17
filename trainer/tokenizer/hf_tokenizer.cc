#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "common/base/atomic_file.h"
#include "trainer/storage/sha256.h"
#include "trainer/tokenizer/bpe_encoder.h"
#include "trainer/tokenizer/hf_decoder.h"
#include "trainer/tokenizer/hf_spec.h"
#include "trainer/tokenizer/nfc.h"
#include "trainer/tokenizer/state_pool.h"
#include "trainer/tokenizer/tokenizer.h"
#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer {
namespace {

/// Tokens that end a document. The first one that the vocabulary has is used.
constexpr std::array<std::string_view, 5> kEndTokens = {
    "<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>",
    "<\xef\xbd\x9c"
    "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"};

void normalize(const hf::Nfc&, std::string& text) {
  std::string buffer;
  if (const std::string_view changed = normalize_nfc(text, buffer); changed.data() == buffer.data())
    text = std::move(buffer);
}

void normalize(const hf::Prepend& prepend, std::string& text) {
  if (!text.empty()) text.insert(0, prepend.text);
}

void normalize(const hf::Replace& replace, std::string& text) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at; (at = text.find(replace.from, done)) != std::string::npos;
       done = at + replace.from.size())
    out.append(text, done, at - done).append(replace.to);
  if (done > 0) text = out.append(text, done);
}

class HfTokenizer final : public Tokenizer {
 public:
  HfTokenizer(hf::Spec spec, std::string file, std::string hash)
      : file_(std::move(file)),
        hash_(std::move(hash)),
        normalizers_(std::move(spec.normalizers)),
        pre_tokenizer_(std::move(spec.pre_tokenizer)),
        encoder_(spec.model, pre_tokenizer_.byte_level),
        decoder_(spec),
        vocab_size_(static_cast<std::int64_t>(spec.model.tokens.size())),
        special_tokens_(std::move(spec.special_tokens)) {
    only_nfc_ = std::all_of(normalizers_.begin(), normalizers_.end(), [](const auto& normalizer) {
      return std::holds_alternative<hf::Nfc>(normalizer);
    });
    std::vector<AddedToken> raw;
    std::vector<AddedToken> normalized;
    for (AddedToken& token : spec.added_tokens) {
      if (token.normalized) token.content = normalized_text(token.content);
      if (!token.content.empty()) (token.normalized ? normalized : raw).push_back(token);
    }
    cuttable_ =
        pre_tokenizer_.byte_level && pre_tokenizer_.pattern != WordPattern::whole &&
        !pre_tokenizer_.add_prefix_space && only_nfc_ &&
        std::none_of(spec.added_tokens.begin(), spec.added_tokens.end(), [](const auto& token) {
          return token.left_strip || token.content.find('\n') != std::string::npos;
        });
    raw_tokens_ = AddedTokenFinder(std::move(raw));
    normalized_tokens_ = AddedTokenFinder(std::move(normalized));
    for (const std::string_view end : kEndTokens) {
      const auto& tokens = spec.model.tokens;
      const auto found = std::find(tokens.begin(), tokens.end(), end);
      if (eod_ || found == tokens.end()) continue;
      eod_ = static_cast<std::int32_t>(found - tokens.begin());
    }
    tokens_ = std::move(spec.model.tokens);
  }

  Result<> encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    std::unique_ptr<State> state = states_.take();
    text = repair_utf8(text, state->repaired);
    raw_tokens_.split(text, state->pieces);
    for (const AddedTokenPiece& piece : state->pieces) {
      if (piece.id >= 0)
        ids.push_back(piece.id);
      else
        encode_text(piece.text, piece.text.data() == text.data(), *state, ids);
    }
    states_.give_back(std::move(state));
    return {};
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    return decoder_.decode(ids);
  }
  std::int64_t vocab_size() const override { return vocab_size_; }
  std::optional<std::int32_t> eod_id() const override { return eod_; }
  const SpecialTokens& special_tokens() const override { return special_tokens_; }
  std::string name() const override { return "hf:" + file_; }
  std::string model_hash() const override { return hash_; }
  std::string token_text(std::int32_t id) const override {
    return tokens_[static_cast<std::size_t>(id)];
  }

  std::size_t find_cut(std::string_view text, std::size_t from) const override {
    return cuttable_ ? find_word_cut(text, from) : std::string_view::npos;
  }

 private:
  /// Buffers and caches of encoding, reused for the next text.
  struct State {
    BpeEncoder::Scratch scratch;
    std::string repaired;
    std::string normalized;
    std::string prefixed;
    std::vector<AddedTokenPiece> pieces;
    std::vector<AddedTokenPiece> inner_pieces;
  };

  std::string normalized_text(std::string_view text) const {
    std::string out(text);
    for (const hf::Normalizer& normalizer : normalizers_)
      std::visit([&](const auto& one) { normalize(one, out); }, normalizer);
    return out;
  }

  /// `text` contains no raw added tokens. `at_start`: the input begins with it.
  void encode_text(std::string_view text, bool at_start, State& state,
                   std::vector<std::int32_t>& ids) const {
    if (!normalizers_.empty()) {
      if (only_nfc_) {
        text = normalize_nfc(text, state.normalized);
      } else {
        state.normalized = normalized_text(text);
        text = state.normalized;
      }
    }
    if (normalized_tokens_.empty()) return encode_words(text, at_start, state, ids);
    normalized_tokens_.split(text, state.inner_pieces);
    for (const AddedTokenPiece& piece : state.inner_pieces) {
      if (piece.id >= 0)
        ids.push_back(piece.id);
      else
        encode_words(piece.text, at_start && piece.text.data() == text.data(), state, ids);
    }
  }

  void encode_words(std::string_view text, bool at_start, State& state,
                    std::vector<std::int32_t>& ids) const {
    if (text.empty()) return;
    if (pre_tokenizer_.metaspace) return encode_metaspace(text, at_start, state, ids);
    if (pre_tokenizer_.add_prefix_space && text.front() != ' ') {
      state.prefixed.assign(1, ' ').append(text);
      text = state.prefixed;
    }
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = word_end(pre_tokenizer_.pattern, text, at);
      encoder_.encode(text.substr(at, end - at), text.size() - at, state.scratch, ids);
      at = end;
    }
  }

  void encode_metaspace(std::string_view text, bool at_start, State& state,
                        std::vector<std::int32_t>& ids) const {
    using Prepend = hf::Metaspace::Prepend;
    const hf::Metaspace& metaspace = *pre_tokenizer_.metaspace;
    std::string& out = state.prefixed;
    out.assign(text);
    normalize(hf::Replace{" ", metaspace.replacement}, out);
    if (!out.starts_with(metaspace.replacement) &&
        (metaspace.prepend == Prepend::always || (metaspace.prepend == Prepend::first && at_start)))
      out.insert(0, metaspace.replacement);
    text = out;
    while (!text.empty()) {
      std::size_t end = std::string_view::npos;
      if (metaspace.split)
        end = text.find(metaspace.replacement,
                        text.starts_with(metaspace.replacement) ? metaspace.replacement.size() : 0);
      const std::string_view word = text.substr(0, end);
      encoder_.encode(word, text.size(), state.scratch, ids);
      text.remove_prefix(word.size());
    }
  }

  std::string file_;
  std::string hash_;
  std::vector<hf::Normalizer> normalizers_;
  hf::PreTokenizer pre_tokenizer_;
  BpeEncoder encoder_;
  hf::TokenDecoder decoder_;
  std::int64_t vocab_size_;
  std::vector<std::string> tokens_;  // by id
  SpecialTokens special_tokens_;
  bool only_nfc_ = false;
  bool cuttable_ = false;
  std::optional<std::int32_t> eod_{};
  AddedTokenFinder raw_tokens_;
  AddedTokenFinder normalized_tokens_;
  StatePool<State> states_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> hf_tokenizer_from_text(std::string_view text, std::string file) {
  SORTIE_ASSIGN_OR_RETURN(hf::Spec spec, hf::parse_tokenizer_json(text, file));
  return std::make_unique<HfTokenizer>(std::move(spec), std::move(file), sha256_hex(text));
}

Result<std::unique_ptr<Tokenizer>> load_hf_tokenizer(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::filesystem::path file =
      std::filesystem::is_directory(path, ignored) ? path / "tokenizer.json" : path;
  auto content = read_file(file);
  if (!content) return std::unexpected(with_context(std::move(content).error(), "tokenizer"));
  return hf_tokenizer_from_text(*content, file.string());
}

}  // namespace sortie::trainer
