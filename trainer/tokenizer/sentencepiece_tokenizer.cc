#include <fmt/core.h>
#include <sentencepiece_processor.h>

#include "common/base/atomic_file.h"
#include "trainer/storage/sha256.h"
#include "trainer/tokenizer/spm_bpe.h"
#include "trainer/tokenizer/spm_unigram.h"
#include "trainer/tokenizer/state_pool.h"
#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer {
namespace {

/// The library needs several hundred bytes of memory per byte of text, and the search of unigram
/// models about fifteen. A long text is therefore encoded in parts. Each ends after the first
/// newline beyond 1 MiB, or at the end of a character if no newline follows soon.
std::size_t part_size(std::string_view text) {
  constexpr std::size_t kPart = std::size_t{1} << 20;
  if (text.size() <= kPart) return text.size();
  const std::size_t newline = text.substr(kPart, kPart).find('\n');
  if (newline != std::string_view::npos) return kPart + newline + 1;
  std::size_t end = kPart;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;
  return end;
}

/// Our own encoders, for models that they support. They give the library's ids.
struct OwnEncoders {
  std::optional<spm::BpeEncoder> bpe{};
  std::optional<spm::UnigramEncoder> unigram{};
};

OwnEncoders own_encoders(std::string_view file) {
  OwnEncoders own;
  const auto model = spm::parse_model(file);
  auto normalizer = model ? spm::Normalizer::create(*model) : std::nullopt;
  if (!normalizer) return own;
  if (model->type == spm::Model::Type::bpe)
    own.bpe = spm::BpeEncoder::create(*model, std::move(*normalizer));
  else if (model->type == spm::Model::Type::unigram)
    own.unigram = spm::UnigramEncoder::create(*model, std::move(*normalizer));
  return own;
}

class SentencepieceTokenizer final : public Tokenizer {
 public:
  SentencepieceTokenizer(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor,
                         OwnEncoders own, std::string file, std::string hash)
      : processor_(std::move(processor)),
        own_(std::move(own)),
        file_(std::move(file)),
        hash_(std::move(hash)) {}

  Result<> encode(std::string_view text, std::vector<std::int32_t>& ids) const override {
    if (own_.bpe) {
      auto state = states_.take();
      own_.bpe->encode(text, state->bpe, ids);
      states_.give_back(std::move(state));
      return {};
    }
    while (!text.empty()) {
      const std::string_view part = text.substr(0, part_size(text));
      SORTIE_TRY(encode_part(part, ids));
      text.remove_prefix(part.size());
    }
    return {};
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    std::vector<int> run;  // ids up to the next one that must not be passed to sentencepiece
    auto flush = [&] {
      std::string part;
      if (!run.empty() && processor_->Decode(run, &part).ok()) text += part;
      run.clear();
    };
    for (const std::int32_t id : ids) {
      const bool known = id >= 0 && id < processor_->GetPieceSize();
      if (known && id != processor_->eos_id()) {
        run.push_back(id);
        continue;
      }
      flush();
      if (!known) text += "\xef\xbf\xbd";
    }
    flush();
    return text;
  }

  std::int64_t vocab_size() const override { return processor_->GetPieceSize(); }
  std::optional<std::int32_t> eod_id() const override {
    const int id = processor_->eos_id();
    return id >= 0 ? std::optional<std::int32_t>(id) : std::nullopt;
  }
  std::string name() const override { return "sentencepiece:" + file_; }
  std::string model_hash() const override { return hash_; }
  std::string token_text(std::int32_t id) const override { return processor_->IdToPiece(id); }
  std::size_t find_cut(std::string_view text, std::size_t from) const override {
    return own_.bpe ? own_.bpe->find_cut(text, from) : std::string_view::npos;
  }

 private:
  /// Buffers and caches of encoding, reused for the next text.
  struct State {
    spm::BpeEncoder::Scratch bpe;
    spm::UnigramEncoder::Scratch unigram;
  };

  Result<> encode_part(std::string_view part, std::vector<std::int32_t>& ids) const {
    if (own_.unigram) {
      auto state = states_.take();
      own_.unigram->encode(part, state->unigram, ids);
      states_.give_back(std::move(state));
      return {};
    }
    std::vector<int> pieces;
    const auto status = processor_->Encode(absl::string_view(part.data(), part.size()), &pieces);
    if (!status.ok())
      return fail(ErrorCode::data, fmt::format("{}: encode: {}", file_, status.ToString()));
    ids.insert(ids.end(), pieces.begin(), pieces.end());
    return {};
  }

  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  OwnEncoders own_;
  StatePool<State> states_;
  std::string file_;
  std::string hash_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> load_sentencepiece(const std::filesystem::path& model,
                                                      SentencepieceEncoder encoder) {
  auto content = read_file(model);
  if (!content) return std::unexpected(with_context(std::move(content).error(), "tokenizer"));
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const auto status = processor->LoadFromSerializedProto(*content);
  if (!status.ok() || processor->GetPieceSize() <= 0)
    return fail(ErrorCode::data,
                fmt::format("{}: not a sentencepiece model ({}); train one with `sortie-train data "
                            "train-tokenizer`",
                            model.string(), status.ToString()));
  OwnEncoders own;
  if (encoder == SentencepieceEncoder::fastest) own = own_encoders(*content);
  return std::make_unique<SentencepieceTokenizer>(std::move(processor), std::move(own),
                                                  model.string(), sha256_hex(*content));
}

Result<std::unique_ptr<Tokenizer>> make_tokenizer(std::string_view name) {
  constexpr std::string_view kSentencepiece = "sentencepiece:";
  constexpr std::string_view kHf = "hf:";
  if (name == "byte") return make_byte_tokenizer();
  if (name.starts_with(kHf) && name.size() > kHf.size())
    return load_hf_tokenizer(std::string(name.substr(kHf.size())));
  if (name.starts_with(kSentencepiece) && name.size() > kSentencepiece.size())
    return load_sentencepiece(std::string(name.substr(kSentencepiece.size())));
  return fail(ErrorCode::usage,
              fmt::format("tokenizer \"{}\": unknown; use \"byte\", \"sentencepiece:FILE\" or "
                          "\"hf:FILE\"",
                          name));
}

}  // namespace sortie::trainer
