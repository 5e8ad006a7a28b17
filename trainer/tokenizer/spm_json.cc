#include "trainer/tokenizer/spm_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <vector>

#include "trainer/tokenizer/spm_model.h"
#include "trainer/tokenizer/tokenizer_json.h"
#include "trainer/tokenizer/unicode.h"

namespace sortie::trainer {
namespace {

using OrderedJson = nlohmann::ordered_json;
using spm::Piece;
using Ids = std::unordered_map<std::string_view, std::int32_t>;

bool is_convertible(const spm::Model& model) {
  return model.type == spm::Model::Type::bpe && model.byte_fallback && model.charsmap.empty() &&
         model.escape_whitespaces && !model.remove_extra_whitespaces && !model.whitespace_as_suffix;
}

/// Returns the ids of the pieces that text is merged into; nullopt if the format lacks a piece's
/// kind.
std::optional<Ids> merged_pieces(const spm::Model& model) {
  Ids ids;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const Piece& piece = model.pieces[id];
    if (piece.text.empty() || valid_utf8_prefix(piece.text) != piece.text.size()) return {};
    if (piece.type == Piece::Type::user_defined || piece.type == Piece::Type::unused) return {};
    if (piece.type == Piece::Type::normal) ids.emplace(piece.text, static_cast<std::int32_t>(id));
  }
  return ids;
}

/// Sentencepiece merges the adjacent symbols whose piece has the highest score, however they divide
/// the piece. A tokenizer.json lists the pairs. Returns nullopt if a list can not express the same.
std::optional<std::vector<TokenPair>> merges_of(const spm::Model& model, const Ids& ids) {
  std::vector<std::int32_t> longer;  // pieces of several characters
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const Piece& piece = model.pieces[id];
    if (piece.type != Piece::Type::normal) continue;
    for (std::string_view rest = piece.text; !rest.empty();) {
      const std::size_t size = std::min(spm::char_bytes(rest[0]), rest.size());
      if (!ids.contains(rest.substr(0, size))) return {};
      rest.remove_prefix(size);
    }
    if (piece.text.size() > spm::char_bytes(piece.text[0]))
      longer.push_back(static_cast<std::int32_t>(id));
  }
  const auto score = [&](std::int32_t id) {
    return model.pieces[static_cast<std::size_t>(id)].score;
  };
  std::ranges::sort(longer, std::ranges::greater(), score);
  if (std::ranges::adjacent_find(longer, std::ranges::equal_to(), score) != longer.end()) return {};
  std::vector<TokenPair> merges;
  for (const std::int32_t id : longer) {
    const std::string_view text = model.pieces[static_cast<std::size_t>(id)].text;
    for (std::size_t at = spm::char_bytes(text[0]); at < text.size();
         at += spm::char_bytes(text[at])) {
      const auto left = ids.find(text.substr(0, at)), right = ids.find(text.substr(at));
      if (left != ids.end() && right != ids.end()) merges.push_back({left->second, right->second});
    }
  }
  return merges;
}

OrderedJson replace_json(std::string_view from, std::string_view to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

}  // namespace

std::optional<std::string> tokenizer_json_of_sentencepiece(std::string_view file) {
  const auto model = spm::parse_model(file);
  if (!model || !is_convertible(*model)) return {};
  const auto ids = merged_pieces(*model);
  if (!ids) return {};
  const auto merges = merges_of(*model, *ids);
  if (!merges) return {};

  OrderedJson root = empty_tokenizer_json();
  std::vector<std::string> tokens;
  for (const Piece& piece : model->pieces) {
    if (piece.type == Piece::Type::unknown) root["model"]["unk_token"] = piece.text;
    if (piece.type == Piece::Type::unknown || piece.type == Piece::Type::control)
      root["added_tokens"].push_back(
          special_token_json(static_cast<std::int32_t>(tokens.size()), piece.text));
    tokens.push_back(piece.text);
  }
  root["model"]["fuse_unk"] = true;
  root["model"]["byte_fallback"] = true;
  OrderedJson normalizers = OrderedJson::array(), decoders = OrderedJson::array();
  if (model->dummy_prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", spm::kSpace}});
  normalizers.push_back(replace_json(" ", spm::kSpace));
  root["normalizer"] = {{"type", "Sequence"}, {"normalizers", normalizers}};
  decoders.push_back(replace_json(spm::kSpace, " "));
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (model->dummy_prefix)
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  root["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
  return tokenizer_json_text(std::move(root), tokens, *merges);
}

}  // namespace sortie::trainer
