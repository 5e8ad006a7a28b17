// The checked content of a Hugging Face tokenizer.json. Everything unsupported is an error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/result.h"
#include "trainer/tokenizer/added_tokens.h"
#include "trainer/tokenizer/bpe_merges.h"
#include "trainer/tokenizer/pretokenizer.h"
#include "trainer/tokenizer/tokenizer.h"

namespace sortie::trainer::hf {

// Normalizers, in the order in which they run.
struct Nfc {};
struct Prepend {
  std::string text;
};
struct Replace {
  std::string from;
  std::string to;
};
using Normalizer = std::variant<Nfc, Prepend, Replace>;

/// Replaces spaces by `replacement`, and may add one before a text (`prepend`).
struct Metaspace {
  enum class Prepend { never, first, always };
  std::string replacement{};
  Prepend prepend = Prepend::always;
  bool split = true;  // a word begins at each replacement
};

struct PreTokenizer {
  WordPattern pattern = WordPattern::whole;
  bool byte_level = false;        // symbols are bytes, not characters
  bool add_prefix_space = false;  // add a space before a text that does not begin with one
  std::optional<Metaspace> metaspace{};
};

struct Model {
  std::vector<std::string> tokens{};  // by id; empty if the file has no token for an id
  std::vector<Merge> merges{};
  std::optional<std::int32_t> unknown{};
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool ignore_merges = false;  // a word that is a token is not merged
};

// Decoders, in the order in which they run. Each processes the texts of all tokens.
struct ByteLevelDecoder {};
struct ByteFallbackDecoder {};
struct FuseDecoder {};
struct StripDecoder {
  std::string text;
  std::size_t start = 0;
  std::size_t stop = 0;
};
struct MetaspaceDecoder {
  std::string replacement;
  bool drop_first = true;  // omit the one that encoding added before the text
};
using Decoder = std::variant<ByteLevelDecoder, ByteFallbackDecoder, FuseDecoder, StripDecoder,
                             MetaspaceDecoder, Replace>;

struct Spec {
  Model model;
  std::vector<AddedToken> added_tokens;
  std::vector<Normalizer> normalizers;
  PreTokenizer pre_tokenizer;
  std::vector<Decoder> decoders;  // empty: tokens are joined with spaces
  SpecialTokens special_tokens;   // from the post-processor
};

/// Parses and checks a tokenizer.json. `where` is the file name in messages. An unknown component,
/// pattern or option is ErrorCode::unsupported, and the message names it: ids that are nearly right
/// are worse than none.
Result<Spec> parse_tokenizer_json(std::string_view text, std::string_view where);

}  // namespace sortie::trainer::hf
