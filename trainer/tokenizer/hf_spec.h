// What a Hugging Face tokenizer.json says, checked, and nothing that is not understood.
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

/// Spaces become `replacement`, which is also put before a text.
struct Metaspace {
  enum class Prepend { never, first, always };
  std::string replacement{};
  Prepend prepend = Prepend::always;
  bool split = true;  // a word begins at each replacement
};

struct PreTokenizer {
  WordPattern pattern = WordPattern::whole;
  bool byte_level = false;        // symbols are bytes, else characters
  bool add_prefix_space = false;  // before a text that begins with none
  std::optional<Metaspace> metaspace{};
};

struct Model {
  std::vector<std::string> tokens{};  // by id; empty where the file names none
  std::vector<Merge> merges{};
  std::optional<std::int32_t> unknown{};
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool ignore_merges = false;  // a word that is a token is that token
};

// Decoders, in the order in which they run, each over the texts of all tokens.
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
  bool drop_first = true;  // the one that encoding has put there
};
using Decoder = std::variant<ByteLevelDecoder, ByteFallbackDecoder, FuseDecoder, StripDecoder,
                             MetaspaceDecoder, Replace>;

struct Spec {
  Model model;
  std::vector<AddedToken> added_tokens;
  std::vector<Normalizer> normalizers;
  PreTokenizer pre_tokenizer;
  std::vector<Decoder> decoders;  // none: tokens are joined with spaces
  SpecialTokens special_tokens;   // of the post-processor
};

/// `where` is how messages call the file. A component, pattern or option that is not known here is
/// an error that names it: ids that are nearly right are worse than none.
Result<Spec> parse_tokenizer_json(std::string_view text, std::string_view where);

}  // namespace sortie::trainer::hf
