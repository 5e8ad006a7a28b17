#include "trainer/tokenizer/spm_unigram.h"

#include <algorithm>
#include <limits>
#include <ranges>

namespace sortie::trainer::spm {

std::optional<UnigramEncoder> UnigramEncoder::create(const Model& model, Normalizer normalizer) {
  const auto rules = IdRules::create(model);
  if (!rules || model.type != Model::Type::unigram) return std::nullopt;
  UnigramEncoder encoder(std::move(normalizer), *rules);
  encoder.least_ = std::numeric_limits<float>::max();
  encoder.most_ = std::numeric_limits<float>::min();  // as in the library: just above 0
  std::vector<std::pair<std::string_view, std::int32_t>> entries;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    if (piece.type == Piece::Type::unused || piece.text.empty() ||
        piece.text.find('\0') != piece.text.npos)
      return std::nullopt;
    encoder.scores_.push_back(piece.score);
    encoder.user_defined_.push_back(piece.type == Piece::Type::user_defined);
    if (piece.type == Piece::Type::normal) {
      encoder.least_ = std::min(encoder.least_, piece.score);
      encoder.most_ = std::max(encoder.most_, piece.score);
    }
    if (piece.type == Piece::Type::normal || piece.type == Piece::Type::user_defined)
      entries.emplace_back(piece.text, static_cast<std::int32_t>(i));
  }
  if (entries.empty()) return std::nullopt;
  encoder.trie_ = PieceTrie(std::move(entries));
  return encoder;
}

/// Finds the best path to each end of a piece. Sums are floats and some comparisons are doubles, as
/// in the library. Otherwise near ties would be decided differently.
void UnigramEncoder::find_path(Scratch& scratch) const {
  const std::string_view text = scratch.text;
  std::vector<Node>& nodes = scratch.nodes;
  nodes.assign(text.size() + 1, {});
  constexpr float kUnknownPenalty = 10.0f;
  const float unknown_score = least_ - kUnknownPenalty;
  for (std::size_t begin = 0; begin < text.size();) {
    const float so_far = nodes[begin].score;
    const std::size_t one = std::min(char_bytes(text[begin]), text.size() - begin);
    bool has_single = false;
    PieceTrie::Place place = 0;
    for (std::size_t end = begin; end < text.size() && trie_.step(place, text[end]);) {
      ++end;
      const std::int32_t id = trie_.value(place);
      if (id < 0) continue;
      const auto index = static_cast<std::size_t>(id);
      const double score = user_defined_[index] ? static_cast<float>(end - begin) * most_ - 0.1
                                                : static_cast<double>(scores_[index]);
      const double candidate = score + static_cast<double>(so_far);
      Node& node = nodes[end];
      if (node.begin == -1 || candidate > static_cast<double>(node.score))
        node = {id, static_cast<float>(candidate), static_cast<std::int32_t>(begin)};
      has_single = has_single || end - begin == one;
    }
    if (!has_single) {
      const float candidate = unknown_score + so_far;
      Node& node = nodes[begin + one];
      if (node.begin == -1 || candidate > node.score)
        node = {rules_.unknown(), candidate, static_cast<std::int32_t>(begin)};
    }
    begin += one;
  }
}

void UnigramEncoder::encode(std::string_view text, Scratch& scratch,
                            std::vector<std::int32_t>& ids) const {
  scratch.text.clear();
  Normalizer::Pass pass(normalizer_, text);
  while (!pass.done()) pass.append(scratch.text, std::numeric_limits<std::size_t>::max() / 2);
  find_path(scratch);
  scratch.path.clear();
  for (auto end = static_cast<std::int32_t>(scratch.text.size()); end > 0;
       end = scratch.nodes[static_cast<std::size_t>(end)].begin)
    scratch.path.push_back(end);
  const std::size_t first = ids.size();
  for (const std::int32_t end : scratch.path | std::views::reverse) {
    const Node& node = scratch.nodes[static_cast<std::size_t>(end)];
    const auto begin = static_cast<std::size_t>(node.begin);
    rules_.add(std::string_view(scratch.text).substr(begin, static_cast<std::size_t>(end) - begin),
               node.id, first, ids);
  }
}

}  // namespace sortie::trainer::spm
