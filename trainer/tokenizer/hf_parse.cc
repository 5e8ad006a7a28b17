#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "trainer/storage/json_problem.h"
#include "trainer/tokenizer/hf_spec.h"
#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer::hf {
namespace {

using Json = nlohmann::json;
constexpr std::int32_t kMaxId = 1 << 24;
constexpr int kMostSequences = 100;
constexpr std::size_t kMostGrowth = 1000;
constexpr std::size_t kMostSpecial = 1000;  // around a text

/// Parses one file. Invalid JSON and missing or wrongly typed members throw Json::exception.
class Parser {
 public:
  explicit Parser(std::string_view where) : where_(where) {}

  Result<Spec> parse(const Json& root) {
    for (const char* key : {"truncation", "padding"})
      if (!is_null(root, key))
        return unknown(key, "changes the ids of long or short texts; set it to null");
    const Json& model = root.at("model");
    at_ = "model";
    SORTIE_TRY(parse_model(model));
    at_ = "added_tokens";
    SORTIE_TRY(parse_added_tokens(root));
    at_ = "normalizer";
    if (!is_null(root, "normalizer")) SORTIE_TRY(add_normalizer(root.at("normalizer")));
    at_ = "pre_tokenizer";
    if (!is_null(root, "pre_tokenizer")) SORTIE_TRY(add_pre_tokenizer(root.at("pre_tokenizer")));
    SORTIE_TRY(finish_splits());
    at_ = "post_processor";
    if (!is_null(root, "post_processor")) SORTIE_TRY(add_post_processor(root.at("post_processor")));
    at_ = "decoder";
    if (!is_null(root, "decoder")) SORTIE_TRY(add_decoder(root.at("decoder")));
    return std::move(spec_);
  }
  /// The part of the file that parse() has reached.
  std::string_view at() const { return at_; }

 private:
  static bool is_null(const Json& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() || found->is_null();
  }
  /// Throws for strings and for numbers with a fraction or an exponent, which are not ids.
  static std::int64_t whole(const Json& id) { return id.get_ref<const Json::number_integer_t&>(); }
  static bool flag(const Json& object, const char* key, bool value) {
    return is_null(object, key) ? value : object.at(key).get<bool>();
  }

  std::unexpected<Error> broken(std::string_view what) const {
    return fail(ErrorCode::data, fmt::format("{}: {}", where_, what));
  }
  std::unexpected<Error> unknown(std::string_view component, std::string_view what) const {
    return fail(ErrorCode::unsupported, fmt::format("{}: {}: {}", where_, component, what));
  }

  Result<> set_token(std::int64_t id, const std::string& content) {
    if (id < 0 || id > kMaxId) return broken(fmt::format("token \"{}\" has id {}", content, id));
    auto& tokens = spec_.model.tokens;
    const auto at = static_cast<std::size_t>(id);
    if (at >= tokens.size()) tokens.resize(at + 1);
    if (!tokens[at].empty() && tokens[at] != content)
      return broken(fmt::format("id {} is \"{}\" and \"{}\"", id, tokens[at], content));
    tokens[at] = content;
    return {};
  }

  Result<> parse_model(const Json& json) {
    Model& model = spec_.model;
    const std::string type = is_null(json, "type") ? "BPE" : json.at("type").get<std::string>();
    if (type != "BPE") return unknown("model " + type, "only BPE is known here");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!is_null(json, key) && !json.at(key).get<std::string>().empty())
        return unknown(fmt::format("model.{}", key), "only null is known here");
    if (!is_null(json, "dropout") && json.at("dropout").get<double>() != 0)
      return unknown("model.dropout", "would make ids random; set it to null");
    for (const auto& [content, id] : json.at("vocab").get_ref<const Json::object_t&>()) {
      const auto number = whole(id);
      SORTIE_TRY(set_token(number, content));
      ids_.emplace(content, static_cast<std::int32_t>(number));
    }
    model.fuse_unknown = flag(json, "fuse_unk", false);
    model.byte_fallback = flag(json, "byte_fallback", false);
    model.ignore_merges = flag(json, "ignore_merges", false);
    if (!is_null(json, "unk_token")) {
      SORTIE_ASSIGN_OR_RETURN(model.unknown,
                              id_of(json.at("unk_token").get<std::string>(), "unk_token"));
    }
    for (const Json& merge : json.at("merges")) SORTIE_TRY(add_merge(merge));
    return {};
  }

  Result<std::int32_t> id_of(const std::string& content, std::string_view what) const {
    const auto found = ids_.find(content);
    if (found == ids_.end())
      return broken(fmt::format("{} \"{}\" is not in the vocabulary", what, content));
    return found->second;
  }

  Result<> add_merge(const Json& merge) {
    std::string left;
    std::string right;
    if (merge.is_array() && merge.size() == 2) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else {
      const auto text = merge.get<std::string>();
      const std::size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
        return broken(fmt::format("merge \"{}\" is not two tokens with a space between", text));
      left = text.substr(0, space);
      right = text.substr(space + 1);
    }
    Merge ids;
    SORTIE_ASSIGN_OR_RETURN(ids.left, id_of(left, "the merge of"));
    SORTIE_ASSIGN_OR_RETURN(ids.right, id_of(right, "the merge of"));
    SORTIE_ASSIGN_OR_RETURN(ids.merged, id_of(left + right, "what merges give,"));
    spec_.model.merges.push_back(ids);
    return {};
  }

  Result<> parse_added_tokens(const Json& root) {
    if (is_null(root, "added_tokens")) return {};
    for (const Json& json : root.at("added_tokens")) {
      const auto id = whole(json.at("id"));
      AddedToken token{.content = json.at("content").get<std::string>(),
                       .single_word = flag(json, "single_word", false),
                       .left_strip = flag(json, "lstrip", false),
                       .right_strip = flag(json, "rstrip", false),
                       .normalized = flag(json, "normalized", true),
                       .special = flag(json, "special", false)};
      if (token.content.empty()) continue;
      const auto found = ids_.find(token.content);
      if (found != ids_.end() && found->second != id)
        return broken(fmt::format("added token \"{}\" has id {}, in the vocabulary it is {}",
                                  token.content, id, found->second));
      SORTIE_TRY(set_token(id, token.content));
      token.id = static_cast<std::int32_t>(id);
      spec_.added_tokens.push_back(std::move(token));
    }
    return {};
  }

  /// Returns the text of {"String": text}, the pattern of Replace.
  Result<std::string> string_pattern(const Json& json, std::string_view component) const {
    const Json& pattern = json.at("pattern");
    if (pattern.contains("String")) return pattern.at("String").get<std::string>();
    return unknown(component, fmt::format("pattern {} is not known here", pattern.dump()));
  }

  /// Limits the growth: a few replacements could make any text too long for memory.
  Result<Replace> replacement(std::string from, const Json& json, std::string_view kind) {
    if (from.empty()) return broken(fmt::format("{} Replace: the pattern is empty", kind));
    Replace replace{std::move(from), json.at("content").get<std::string>()};
    growth_ *= std::max<std::size_t>(1, replace.to.size() / replace.from.size());
    if (growth_ > kMostGrowth)
      return broken(
          fmt::format("{} Replace: makes texts more than {} times longer", kind, kMostGrowth));
    return replace;
  }

  Result<> add_normalizer(const Json& json) {
    const auto type = json.at("type").get<std::string>();
    if (type == "Sequence") {
      if (++sequences_ > kMostSequences) return broken("too many Sequence components");
      for (const Json& part : json.at("normalizers")) SORTIE_TRY(add_normalizer(part));
    } else if (type == "NFC") {
      spec_.normalizers.emplace_back(Nfc{});
    } else if (type == "Prepend") {
      spec_.normalizers.emplace_back(Prepend{json.at("prepend").get<std::string>()});
    } else if (type == "Replace") {
      SORTIE_ASSIGN_OR_RETURN(std::string from, string_pattern(json, "normalizer Replace"));
      SORTIE_ASSIGN_OR_RETURN(Replace replace, replacement(std::move(from), json, "normalizer"));
      spec_.normalizers.emplace_back(std::move(replace));
    } else {
      return unknown("normalizer " + type, "is not known here (NFC, Prepend, Replace are)");
    }
    return {};
  }

  Result<> add_pre_tokenizer(const Json& json) {
    PreTokenizer& out = spec_.pre_tokenizer;
    const auto type = json.at("type").get<std::string>();
    if (type == "Sequence") {
      if (++sequences_ > kMostSequences) return broken("too many Sequence components");
      for (const Json& part : json.at("pretokenizers")) SORTIE_TRY(add_pre_tokenizer(part));
      return {};
    }
    if (out.byte_level || out.metaspace)
      return unknown("pre_tokenizer " + type, "after ByteLevel or Metaspace is not known here");
    const bool first = splits_.empty();
    if (type == "ByteLevel") {
      const bool cuts = flag(json, "use_regex", true);
      out.byte_level = true;
      out.add_prefix_space = flag(json, "add_prefix_space", true);
      if (!first && (cuts || out.add_prefix_space))
        return unknown("pre_tokenizer ByteLevel",
                       "after a Split it is known only with use_regex and add_prefix_space false");
      if (cuts) out.pattern = WordPattern::gpt2;
      return {};
    }
    if (type == "Split") return add_split(json);
    if (type == "Metaspace" && first) return add_metaspace(json);
    return unknown("pre_tokenizer " + type,
                   first ? "is not known here (ByteLevel, Split, Metaspace are)"
                         : "after a Split is not known here");
  }

  Result<> add_split(const Json& json) {
    const Json& pattern = json.at("pattern");
    if (!pattern.contains("Regex")) return unknown_split(pattern);
    splits_.push_back(pattern.at("Regex").get<std::string>());
    const auto behavior = json.at("behavior").get<std::string>();
    const bool invert = flag(json, "invert", false);
    // The patterns leave no gaps, so removing what does not match is the same as isolating the
    // matches.
    if (!(behavior == "Isolated" && !invert) && !(behavior == "Removed" && invert))
      return unknown("pre_tokenizer Split",
                     fmt::format("behavior {}{} is not known here (Isolated is)", behavior,
                                 invert ? " with invert" : ""));
    if (behavior == "Removed") removed_ = true;
    return {};
  }

  std::unexpected<Error> unknown_split(const Json& pattern) const {
    return unknown(
        "pre_tokenizer Split",
        fmt::format("pattern {} is not known here (those of GPT-2, Llama 3, Qwen 2, Qwen "
                    "3.5, GPT-4o, Mistral's Tekken and DeepSeek-V3 are)",
                    pattern.dump()));
  }

  /// Determines the pattern from the regular expressions of all Split components.
  Result<> finish_splits() {
    if (splits_.empty()) return {};
    const auto known = word_pattern_of_regexes(splits_);
    if (!known)
      return unknown_split(splits_.size() == 1 ? Json{{"Regex", splits_[0]}} : Json(splits_));
    if (removed_ && *known == WordPattern::deepseek_v3)
      return unknown("pre_tokenizer Split", "behavior Removed of a pattern that leaves gaps");
    spec_.pre_tokenizer.pattern = *known;
    return {};
  }

  Result<std::string> character(const Json& json, const char* key) const {
    auto text = json.at(key).get<std::string>();
    if (text.empty() || text.size() != char_bytes(text.front()))
      return broken(fmt::format("{} of {} is \"{}\", not one character", key,
                                json.at("type").get<std::string>(), text));
    return text;
  }

  Result<Metaspace::Prepend> prepend_scheme(const Json& json) const {
    if (!is_null(json, "prepend_scheme")) {
      const auto scheme = json.at("prepend_scheme").get<std::string>();
      if (scheme == "never") return Metaspace::Prepend::never;
      if (scheme == "first") return Metaspace::Prepend::first;
      if (scheme == "always") return Metaspace::Prepend::always;
      return unknown("Metaspace", fmt::format("prepend_scheme {} is not known here", scheme));
    }
    return flag(json, "add_prefix_space", true) ? Metaspace::Prepend::always
                                                : Metaspace::Prepend::never;
  }

  Result<> add_metaspace(const Json& json) {
    Metaspace metaspace;
    SORTIE_ASSIGN_OR_RETURN(metaspace.replacement, character(json, "replacement"));
    SORTIE_ASSIGN_OR_RETURN(metaspace.prepend, prepend_scheme(json));
    metaspace.split = flag(json, "split", true);
    spec_.pre_tokenizer.metaspace = std::move(metaspace);
    return {};
  }

  Result<> add_decoder(const Json& json) {
    auto& out = spec_.decoders;
    const auto type = json.at("type").get<std::string>();
    if (type == "Sequence") {
      if (++sequences_ > kMostSequences) return broken("too many Sequence components");
      for (const Json& part : json.at("decoders")) SORTIE_TRY(add_decoder(part));
    } else if (type == "ByteLevel") {
      out.emplace_back(ByteLevelDecoder{});
    } else if (type == "ByteFallback") {
      out.emplace_back(ByteFallbackDecoder{});
    } else if (type == "Fuse") {
      out.emplace_back(FuseDecoder{});
    } else if (type == "Strip") {
      SORTIE_ASSIGN_OR_RETURN(std::string content, character(json, "content"));
      out.emplace_back(StripDecoder{std::move(content), json.at("start").get<std::size_t>(),
                                    json.at("stop").get<std::size_t>()});
    } else if (type == "Metaspace") {
      SORTIE_ASSIGN_OR_RETURN(const auto prepend, prepend_scheme(json));
      SORTIE_ASSIGN_OR_RETURN(std::string replacement, character(json, "replacement"));
      out.emplace_back(
          MetaspaceDecoder{std::move(replacement), prepend != Metaspace::Prepend::never});
    } else if (type == "Replace") {
      SORTIE_ASSIGN_OR_RETURN(std::string from, string_pattern(json, "decoder Replace"));
      SORTIE_ASSIGN_OR_RETURN(Replace replace, replacement(std::move(from), json, "decoder"));
      out.emplace_back(std::move(replace));
    } else {
      return unknown("decoder " + type, "is not known here");
    }
    return {};
  }

  /// Only one post-processor may add tokens: the package passes the parts of the first to a second
  /// one as a pair.
  Result<> add_post_processor(const Json& json) {
    const auto type = json.at("type").get<std::string>();
    SpecialTokens added;
    if (type == "Sequence") {
      if (++sequences_ > kMostSequences) return broken("too many Sequence components");
      for (const Json& part : json.at("processors")) SORTIE_TRY(add_post_processor(part));
    } else if (type == "TemplateProcessing") {
      SORTIE_ASSIGN_OR_RETURN(added, template_tokens(json));
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      SORTIE_TRY(add_special(json.at("cls").at(1), added.before));
      SORTIE_TRY(add_special(json.at("sep").at(1), added.after));
    } else if (type != "ByteLevel") {  // ByteLevel changes offsets, not ids
      return unknown("post_processor " + type, "is not known here");
    }
    if (added.before.empty() && added.after.empty()) return {};
    const SpecialTokens& all = spec_.special_tokens;
    if (!all.before.empty() || !all.after.empty())
      return unknown("post_processor " + type, "after one that adds tokens is not supported");
    spec_.special_tokens = std::move(added);
    return {};
  }

  /// Returns the tokens of the template for a single text, such as "<s> $A".
  Result<SpecialTokens> template_tokens(const Json& json) const {
    SpecialTokens tokens;
    bool text = false;
    for (const Json& piece : json.at("single")) {
      if (piece.contains("SpecialToken")) {
        const auto name = piece.at("SpecialToken").at("id").get<std::string>();
        for (const Json& id : json.at("special_tokens").at(name).at("ids"))
          SORTIE_TRY(add_special(id, text ? tokens.after : tokens.before));
      } else if (!text && piece.at("Sequence").at("id") == "A") {
        text = true;
      } else {
        return unknown("post_processor TemplateProcessing",
                       fmt::format("single is {}; a text is known once", json.at("single").dump()));
      }
    }
    if (!text) return broken("post_processor TemplateProcessing: single has no text");
    return tokens;
  }

  Result<> add_special(const Json& json, std::vector<std::int32_t>& out) const {
    const auto id = whole(json);
    const auto& tokens = spec_.model.tokens;
    if (id < 0 || id >= static_cast<std::int64_t>(tokens.size()))
      return broken(fmt::format("post_processor: id {} is not in the vocabulary", id));
    if (out.size() == kMostSpecial) return broken("post_processor: too many tokens");
    out.push_back(static_cast<std::int32_t>(id));
    return {};
  }

  std::string_view where_, at_;
  std::vector<std::string> splits_;  // patterns of Split, in order
  bool removed_ = false;             // one of them keeps only its matches
  std::size_t growth_ = 1;           // factor by which all Replace components can lengthen a text
  int sequences_ = 0;  // number of Sequence components; real files have fewer than a dozen
  Spec spec_{};
  std::unordered_map<std::string, std::int32_t> ids_;  // of the model's vocabulary
};

}  // namespace

Result<Spec> parse_tokenizer_json(std::string_view text, std::string_view where) {
  Parser parser(where);
  // The library reports errors by exceptions. None leaves this function.
  try {
    return parser.parse(Json::parse(text));
  } catch (const Json::exception& error) {
    return fail(ErrorCode::data,
                fmt::format("{}: not a tokenizer.json: {}{}; write it again with save_pretrained() "
                            "of transformers, or download it again",
                            where, parser.at().empty() ? "" : fmt::format("{}: ", parser.at()),
                            json_problem(error, text)));
  }
}

}  // namespace sortie::trainer::hf
