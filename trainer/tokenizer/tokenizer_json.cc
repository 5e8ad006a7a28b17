#include "trainer/tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace sortie::trainer {
namespace {

constexpr const char* kVocabMark = "@vocab";
constexpr const char* kMergesMark = "@merges";

}  // namespace

nlohmann::ordered_json empty_tokenizer_json() {
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", nlohmann::ordered_json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", nullptr},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", kVocabMark},
            {"merges", kMergesMark}}}};
}

nlohmann::ordered_json special_token_json(std::int32_t id, std::string_view text) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

nlohmann::ordered_json byte_level_json(bool trim_offsets, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", trim_offsets},
          {"use_regex", use_regex}};
}

std::string tokenizer_json_text(nlohmann::ordered_json root, std::span<const std::string> tokens,
                                std::span<const TokenPair> merges) {
  // The two long lists are written by hand: an ordered object compares all its keys on each
  // insertion.
  const std::string frame = root.dump(1);
  const std::string vocab_mark = fmt::format("\"{}\"", kVocabMark);
  const std::string merges_mark = fmt::format("\"{}\"", kMergesMark);
  const std::size_t vocab_at = frame.rfind(vocab_mark);
  const std::size_t merges_at = frame.rfind(merges_mark);
  std::string text = frame.substr(0, vocab_at) + "{";
  const auto token = [&](std::int32_t id) {
    return nlohmann::ordered_json(tokens[static_cast<std::size_t>(id)]).dump();
  };
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(tokens.size()); ++id)
    text += fmt::format("{}\n   {}: {}", id == 0 ? "" : ",", token(id), id);
  text += "\n  }" +
          frame.substr(vocab_at + vocab_mark.size(), merges_at - vocab_at - vocab_mark.size()) +
          "[";
  for (std::size_t i = 0; i < merges.size(); ++i)
    text += fmt::format("{}\n   [{}, {}]", i == 0 ? "" : ",", token(merges[i].left),
                        token(merges[i].right));
  return text + "\n  ]" + frame.substr(merges_at + merges_mark.size()) + "\n";
}

}  // namespace sortie::trainer
